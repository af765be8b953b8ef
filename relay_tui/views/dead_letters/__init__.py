"""Dead letters: `view` has the keys, `actions` the operations, `tables` the three tables; each extends the next.

`letter_list` and `rows` hold the pages that were loaded, `selection` resolves marks and filters, `groups` and `runs`
fill the tables above. `detail`, `plan` and `difference` are dialogs; `edit`, `editor` and `export` are operations.
"""
