"""The configuration files of the common agents: what must stand in them for Relay, put in and taken out again.

`catalog.py` says which agent has which files and what goes into them. `merging.py` does it to a file, `editing.py` to
its text, and `json_text.py` and `toml_text.py` change one place of a text and leave the rest as it is.
"""
