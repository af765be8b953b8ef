"""Publish: `view` is the form, `draft` what is in it, `known` who would get it, `outcome` what became of it.

`shelf` keeps templates and history, `choose` lets one be taken.
"""
