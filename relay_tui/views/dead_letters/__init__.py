"""Dead letters: `view` has the keys, `board` the tables, `work` everything that can be done.

`list` and `rows` hold what was scrolled to, `choice` what is meant by marks and filters, `groups` and `runs` the tables
above; `detail`, `plan`, `edit` and `export` are what opens.
"""
