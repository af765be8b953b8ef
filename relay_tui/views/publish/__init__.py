"""Publish: `view` sends the `draft` in `form`; `recipients` shows its recipients, `outcome` explains the result.

`saved_drafts` reads templates and history.
"""
