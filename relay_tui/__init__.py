"""The dashboard, on Textual. It uses the bus only through `RelayClient`.

To read the code in twenty minutes, follow this order:

1. `screens.py` lists the nine screens; each is imported when it is first visited.
2. `live/store.py` holds the connection and the live state that all screens show; `live/history.py` records how it
   changes, `live/alerts.py` derives what needs attention.
3. `app.py` connects keys, commands and palette entries to actions. `shell/actions.py` is the registry from which keys,
   command line, palette, help and footer derive; `shell/frame.py` is the frame around the screens.
4. `widgets/styled_lines.py`, then `widgets/table.py`: screens are painted line by line, and only where they changed.
5. `shell/view.py` is the base class of a screen. `views/breakers.py` is the simplest one, `views/dead_letters/` the
   largest.
6. Text from others is sanitised where it enters (`relay_core.text`); `widgets/control_filter.py` is the second defence.

`once.py` prints the state without Textual (``--once``, ``--plain``), `launch.py` starts a supervisor, and `demo/` runs
a real one with live traffic (``relay-tui --demo``).

Layers, top to bottom: app, once; screens; views; shell; live; demo; launch; widgets; user_files. Of
`relay_core` it may import `client` and below, except `storage`; it never imports the supervisor.
"""
