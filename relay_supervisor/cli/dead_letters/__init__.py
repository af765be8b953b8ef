"""Commands for dead letters and their replay. Imports are as in `cli`."""
