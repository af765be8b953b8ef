"""Commands for dead letters and their replay."""
