"""Adapters: `view` has the table and the actions, `detail` shows one in full."""
