"""The live state: the connection to the supervisor, the recent history, and the alerts. No Textual."""
