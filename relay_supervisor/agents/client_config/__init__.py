"""Add Relay to the configuration files of the common agent programs, and remove it again.

`catalog.py` lists the programs, their files and the entries that Relay needs. `merging.py` edits a file, `editing.py`
its text; `json_text.py` and `toml_text.py` change one place of a text and keep every other byte.
"""
