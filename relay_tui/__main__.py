"""``relay-tui`` and ``python -m relay_tui``: what is asked for on the command line.

Textual is imported only for a dashboard: not for --help, not for a mistake, not for --once and --plain.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack

OK, USAGE = 0, 2
_THEMES = ("dark", "light", "colour-blind", "ansi")


def parser() -> argparse.ArgumentParser:
    """Return what the command understands."""
    made = argparse.ArgumentParser(
        prog="relay-tui",
        description="The dashboard of Relay: live breakers, mailboxes, adapters, traces, dead letters and replay.",
        epilog="Keys: 1-7 R J screens, ? help, : command, ctrl+p palette, q quit. Own keys: ~/.config/relay/keys.toml",
    )
    made.add_argument(
        "--socket", metavar="PATH", help="the supervisor's socket (else RELAY_SOCKET, else the usual place)"
    )
    made.add_argument("--data-dir", metavar="DIR", help="whose supervisor it must be (else RELAY_DATA_DIR)")
    made.add_argument("--demo", action="store_true", help="start a supervisor of its own with living traffic")
    made.add_argument("--read-only", action="store_true", help="without every action that changes something")
    made.add_argument("--slow-link", action="store_true", help="paint seldom, for a slow connection")
    made.add_argument("--theme", choices=_THEMES, help="the colours (else RELAY_THEME, else dark)")
    made.add_argument("--once", action="store_true", help="print the state once and leave; with --json as JSON")
    made.add_argument("--json", action="store_true", help="with --once: one JSON document")
    made.add_argument("--plain", action="store_true", help="print the state line by line, for screen readers")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    asked = parser()
    given = asked.parse_args(arguments)
    if given.json and not given.once:
        asked.error("--json goes with --once")
    if given.demo and (given.once or given.plain):
        asked.error("--demo is a dashboard: it does not go with --once or --plain")
    theme = given.theme or os.environ.get("RELAY_THEME") or "dark"
    if theme not in _THEMES:
        asked.error(f"RELAY_THEME is {theme!r}: choose from {', '.join(_THEMES)}")
    if given.once or given.plain:
        from relay_tui.once import print_once

        return print_once(given.socket, given.data_dir, as_json=given.json)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        sys.stderr.write("relay-tui: not a terminal: use --once --json, or --plain\n")
        return USAGE
    for name in ("COLUMNS", "LINES"):
        # They may be those of another terminal (readline sets them for all children of a Python program), and Textual
        # would believe them rather than the terminal that it paints on.
        os.environ.pop(name, None)
    os.environ.setdefault("TEXTUAL_FPS", "240")  # a key is answered within 4 ms instead of 17
    os.environ.setdefault("TEXTUAL_ANIMATIONS", "none")
    with ExitStack() as stack:
        demo = None
        if given.demo:
            from relay_tui.demo.session import DemoSession

            demo = stack.enter_context(DemoSession.start())  # it comes up while Textual is imported
        from relay_tui.app import Dashboard

        app = Dashboard(
            socket=given.socket,
            data_dir=given.data_dir,
            demo=demo,
            read_only=given.read_only,
            slow_link=given.slow_link,
            theme=theme,
        )
        app.run()
        if app.demo is not None:
            stack.enter_context(app.demo)  # one that was begun from within
    return app.return_code or OK


if __name__ == "__main__":
    sys.exit(main())
