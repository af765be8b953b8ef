"""Relay's entries in the configuration files of common agents: added and removed.

`catalog` says which agent has which files and entries. `merging` edits a file, `editing` its text; `json_text` and
`toml_text` change one place of a text and no other byte. `own_command` finds the command that starts this `relay`.
Imports `relay_core.errors` and `relay_core.storage` only.
"""
