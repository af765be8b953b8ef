"""``relay-tui`` and ``python -m relay_tui``: the command line.

Textual is imported only for a dashboard: not for --help, a usage error, --once or --plain.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack

OK, USAGE = 0, 2
_THEMES = ("dark", "light", "colour-blind", "ansi")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="relay-tui",
        description="The Relay dashboard: live breakers, mailboxes, adapters, traces, dead letters and replay.",
        epilog="Keys: 1-7 R J screens, ? help, : command, ctrl+p palette, q quit. Your keys: ~/.config/relay/keys.toml",
    )
    parser.add_argument(
        "--socket", metavar="PATH", help="the supervisor's socket (default: RELAY_SOCKET, else the standard path)"
    )
    parser.add_argument("--data-dir", metavar="DIR", help="the supervisor's data directory (default: RELAY_DATA_DIR)")
    parser.add_argument("--demo", action="store_true", help="run a temporary supervisor with live traffic")
    parser.add_argument("--read-only", action="store_true", help="disable every action that changes something")
    parser.add_argument("--slow-link", action="store_true", help="repaint every two seconds, for a slow connection")
    parser.add_argument("--theme", choices=_THEMES, help="the colours (default: RELAY_THEME, else dark)")
    parser.add_argument("--once", action="store_true", help="print the state and exit")
    parser.add_argument("--json", action="store_true", help="with --once: print one JSON document")
    parser.add_argument("--plain", action="store_true", help="print the state in sentences, for screen readers")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = build_parser()
    given = parser.parse_args(arguments)
    if given.json and not given.once:
        parser.error("--json needs --once")
    if given.demo and (given.once or given.plain):
        parser.error("--demo cannot be combined with --once or --plain")
    theme = given.theme or os.environ.get("RELAY_THEME") or "dark"
    if theme not in _THEMES:
        parser.error(f"RELAY_THEME is {theme!r}: choose from {', '.join(_THEMES)}")
    if given.once or given.plain:
        from relay_tui.once import print_once

        return print_once(given.socket, given.data_dir, as_json=given.json)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        sys.stderr.write("relay-tui: not a terminal: use --once --json, or --plain\n")
        return USAGE
    for name in ("COLUMNS", "LINES"):
        # Textual prefers them to the size of the terminal, but they may describe another one: readline sets them for
        # all child processes.
        os.environ.pop(name, None)
    os.environ.setdefault("TEXTUAL_FPS", "240")  # a key takes effect within 4 ms instead of 17
    os.environ.setdefault("TEXTUAL_ANIMATIONS", "none")
    with ExitStack() as stack:
        demo = None
        if given.demo:
            from relay_tui.demo.session import DemoSession

            demo = stack.enter_context(DemoSession.start())  # starts while Textual is imported
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
            stack.enter_context(app.demo)  # a demo that was started from the dashboard
    return app.return_code or OK


if __name__ == "__main__":
    sys.exit(main())
