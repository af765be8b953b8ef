"""`relay-supervisor doctor`: what is wrong with the data directory and the machine, and how to repair it."""
