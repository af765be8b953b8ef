"""The frame around the screens: header, footer, prompt, palette, help, and the registry of actions and keys.

`view` is the base class of every screen, `host` the application as screens use it. May import `live` and below, but no
screen.
"""
