"""The command `relay`: everything that operators and scripts do with a running supervisor.

1. `COMMANDS` is the whole list. The module of a command is imported when it is called, so that ``relay --help`` is
   fast.
2. stdout has the answer and nothing else: text for people, or with ``--json`` one JSON document (`subscribe`,
   `signal --watch` and `dlq export`: one per line). Everything else goes to stderr.
3. Exit codes: 0 ok, 1 error, 2 usage, 3 supervisor not reachable, 4 refused by the bus, 5 timed out, 130 interrupted.
   An error is one line that says what to do; RELAY_DEBUG=1 adds the traceback.
4. Text from others (payloads, reasons, names) is sanitised (`relay_core.text.sanitize`) before it is printed.
5. Commands that agents start (`LIGHT`) bypass all this to start quickly.

A call passes `groups` (finds the command), `command` (options and connection), the command's module, `output` (text for
people) and `entry` (exit code). `operate/endpoints.py` is a good example; `arguments` has shared parameters. May import
`relay_core.client` and below; only `programs` imports another part of the supervisor.
"""

from __future__ import annotations

COMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    "See": {
        "status": ("operate.status:app", "Show the state of the bus, problems first."),
        "endpoints": ("operate.endpoints:app", "Subjects with a mailbox: list, add, rm."),
        "subscriptions": ("operate.endpoints:subscriptions_app", "Show who is subscribed to what, in which process."),
        "breakers": ("operate.breakers:app", "Circuit breakers: list, reset, force."),
        "senders": ("operate.breakers:senders_app", "Show how much of its rate limit each sender has used."),
        "trace": ("messages.traces:app", "Show what happened to a message, hop by hop."),
        "traces": ("messages.traces:list_app", "Find messages by id, subject, sender or status."),
        "report": ("operate.reports:app", "Nightly reports: list, show, run."),
    },
    "Send and receive": {
        "publish": ("messages.publish:app", "Publish one message or many; wait for a reply."),
        "subscribe": ("messages.subscribe:app", "Print messages as JSON lines as they arrive."),
        "signal": ("messages.signals:app", "Send a signal, or print signals as they arrive."),
        "inbox": ("messages.inbox:app", "Show or claim waiting messages."),
        "ack": ("messages.inbox:ack_app", "Acknowledge a claimed message."),
        "fail": ("messages.inbox:fail_app", "Turn a claimed message into a dead letter."),
    },
    "Agents": {
        "agent": ("programs.agent:app", "Agents: list, add (and configure), rm."),
        "hook": ("programs.light:hook_app", "Show an agent its unread mail; run by the agent's hooks."),
        "mcp": ("programs.light:mcp_app", "Serve the bus to an agent as MCP tools on stdin and stdout."),
    },
    "Repair": {
        "dlq": ("dead_letters.replay:app", "Dead letters: list, show, plan, replay, edit, purge, export ..."),
    },
    "Operate": {
        "adapters": ("operate.adapters:app", "Adapters: list, enable, disable, test, reload."),
        "access": ("operate.access:app", "Access rules: list, add, rm."),
        "token": ("operate.access:token_app", "Tokens for agents: list, add, rm."),
        "schedules": ("operate.schedules:app", "Messages at set times: list, run, pause, resume."),
        "jobs": ("operate.jobs:app", "Scheduled maintenance: list, run, cancel."),
        "config": ("operate.config:app", "The configuration in force: show, reload."),
        "demo": ("programs.demo:app", "Open the dashboard on live demo traffic."),
    },
}
"""Under each heading of ``relay --help``: a command's name, its module and app, and its help."""

LIGHT = {"hook": "relay_supervisor.agents.hooks.command", "mcp": "relay_supervisor.agents.mcp.command"}
"""Commands that agents start all the time; they import the standard library only."""


def main() -> None:
    """Run the command line."""
    import os
    import sys

    # The caller may have closed them.
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    light = light_command(sys.argv[1:])
    if light is not None:
        from importlib import import_module

        name, args = light
        code = import_module(LIGHT[name]).main(args)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # there is nothing to clean up, and the interpreter's shutdown takes 4 ms
    # Pydantic would search every installed package for plugins: a tenth of a command's time.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")
    from relay_supervisor.cli.entry import enter
    from relay_supervisor.cli.groups import root_app

    enter(root_app(), "relay")


def light_command(args: list[str]) -> tuple[str, list[str]] | None:
    """Return the light command that is called and its arguments; None for other commands and for ``--help``."""
    at = 0
    while at < len(args) and args[at].partition("=")[0] in ("--data-dir", "--socket", "--token"):
        at += 1 if "=" in args[at] else 2
    if at >= len(args) or args[at] not in LIGHT or "--help" in args:
        return None
    return args[at], args[:at] + args[at + 1 :]
