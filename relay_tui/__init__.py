"""The dashboard of Relay, on Textual. It knows the bus by RelayClient alone.

A tour of twenty minutes, in this order:

1. `screens`: the nine screens, one line each; none is imported before it is wanted.
2. `store`: one connection, one live picture, and whether it can be believed. Everything that is shown comes from here;
   `history` remembers how it changes, `alerts` says what in it should be looked at.
3. `app`: how the application wakes, what it shows, and how every key, command and palette entry ends in `do`.
   `actions` is the one registry behind keys (`keys`, the operator's own), command line (`prompt`), `palette`, `help`
   and footer; `desk` and `bars` are the frame around the screens.
4. `lines`, then `table`: why a screen is painted line by line, and only where it differs. `look` has the styles.
5. `view`: what every screen is. Then one of them: `views.breakers` is the simplest, `views.jobs` begins work that
   takes its time, `views.dead_letters` is the largest (its `__init__` is a map). What they share is listed in `views`.
6. `safe`: strangers write payloads, reasons and names. Every text is made safe where it comes in; `net` is there should
   one be forgotten.

Left for another day: `dialogs` and `alert_list` (questions), `words` (numbers and times), `clipboard`, `own_places` and
`launch` (a supervisor, started from here), `once` (the state without Textual: --once, --plain), `__main__` (the command
line), and `demo`, a real supervisor with living traffic: look at your screen there, `relay-tui --demo`.
"""
