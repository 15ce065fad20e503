"""The parts of the port of letters (`deadletter.store`), by who calls them."""
