"""`relay-supervisor doctor`: checks of the data directory and the machine, with suggested repairs."""
