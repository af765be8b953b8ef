"""Programs for developers of Relay; nothing here is shipped."""
