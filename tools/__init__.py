"""Programs for those who develop Relay; nothing here is shipped."""
