"""The control service's tables, and the one way to read and write them."""
