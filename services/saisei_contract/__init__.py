"""The rules of the Host as pure values and functions: no I/O, no clock, imports nothing of the other packages."""
