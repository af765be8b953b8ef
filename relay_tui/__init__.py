"""The dashboard of Relay, on Textual. It knows the bus by RelayClient alone.

- `__main__` is the command line; `once` prints the state without a dashboard.
- `app` holds the `screens` together in their frame (`desk`, `bars`): keys and commands (`actions`, `keys`, `prompt`,
  `palette`, `help`), themes (`look`).
- `store` holds the live picture and says whether it can be believed; `history` and `alerts` read it.
- `view` is what every screen of `views` is; `lines`, `table` and `dialogs` are what screens are made of.
- `safe` makes every text from outside fit for a terminal; `net` is there should one be forgotten.
- `demo` is a supervisor on a temporary directory with living traffic.
"""
