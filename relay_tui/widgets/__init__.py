"""Building blocks of screens: styled lines, tables, dialogs, themes and the control-character filter.

They know nothing of the bus; of Relay they import only `relay_core.text`.
"""
