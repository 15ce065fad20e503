"""What people see of letters: masked, as lines of a file, and with what is written down for such a failure."""
