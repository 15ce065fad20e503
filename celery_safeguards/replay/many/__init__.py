"""Many letters back to work: chosen, looked at, sent at a pace as one job, and followed until each has its answer."""
