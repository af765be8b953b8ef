"""Commands that show and operate the supervisor: status, endpoints, breakers, adapters, access, jobs and reports.

Imports are as in `cli`.
"""
