"""Adapters: `view` has the table and the actions, `detail` tells one in full."""
