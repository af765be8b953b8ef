"""The daemon: one bus, its adapters and its upkeep, on one Unix socket; and the `relay` command."""
