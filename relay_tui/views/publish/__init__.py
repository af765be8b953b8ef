"""Publish: `view` sends what `form` holds, a `draft`; `recipients` shows its receivers, `outcome` explains the result.

`saved_drafts` reads templates and history.
"""
