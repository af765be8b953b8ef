"""The dashboard, on Textual. It reaches the bus through `RelayClient` only.

Read it in this order:

1. `screens`: the list of screens; each is imported when it is first needed.
2. `live`: the connection, the live state, its recent history, and the alerts derived from them.
3. `app`: startup, drawing, and `do`, in which every key, command and palette entry ends. `shell` has the registry of
   actions and the frame around the screens.
4. `widgets`: styled lines and tables, which repaint only what changed, dialogs and themes.
5. `views`: one module or package per screen. `views.breakers` is the simplest, `views.dead_letters` the largest.

`once` prints the state without Textual (--once, --plain), `launch` starts a supervisor, and `demo` is a real supervisor
with live traffic: run `relay-tui --demo` to see a screen you changed.
"""
