"""The command `relay`: everything that operators and scripts do with a running supervisor.

1. `COMMANDS` is the whole list. The module of a command is imported when it is called, so that ``relay --help`` is
   fast.
2. stdout has the answer and nothing else: text for people, or with ``--json`` one JSON document (`subscribe` and
   `dlq export`: one per line). Everything else goes to stderr.
3. Exit codes: 0 ok, 1 error, 2 usage, 3 supervisor not reachable, 4 refused by the bus, 5 timed out, 130 interrupted.
   An error is one line that says what to do; RELAY_DEBUG=1 adds the traceback.
4. Text from others (payloads, reasons, names) is sanitised (`relay_core.text.sanitize`) before it is printed.
5. Commands that agents start (`LIGHT`) bypass all this to start quickly.

A call passes `groups` (finds the command), `command` (options and connection), the command's module, `output` (text for
people) and `entry` (exit code). `operate/endpoints.py` is a good example; `arguments` has shared parameters. May import
`relay_core.client` and below; only `programs` imports another part of the supervisor.
"""

from __future__ import annotations


class Listed:
    """A command: its name, where its code is, and what it is for."""

    def __init__(self, name: str, module: str, help: str) -> None:
        self.name = name
        self.module = module
        self.help = help


COMMANDS: dict[str, list[Listed]] = {
    "See": [
        Listed("status", "operate.status:app", "How everything is doing, problems first."),
        Listed("endpoints", "operate.endpoints:app", "Subjects with a mailbox: list, add, rm."),
        Listed("breakers", "operate.breakers:app", "Circuit breakers: list, reset, force."),
        Listed("senders", "operate.breakers:senders_app", "What each sender has used of its rate limit."),
        Listed("trace", "messages.traces:app", "What became of a message, hop by hop."),
        Listed("traces", "messages.traces:list_app", "Messages by id, subject, sender or status, newest first."),
        Listed("report", "operate.reports:app", "Nightly reports: list, show, run."),
    ],
    "Send and receive": [
        Listed("publish", "messages.publish:app", "Publish a message, or many; wait for an answer."),
        Listed("subscribe", "messages.subscribe:app", "Print messages as JSON lines as they come."),
        Listed("inbox", "messages.inbox:app", "Look at waiting messages, or claim them."),
        Listed("ack", "messages.inbox:ack_app", "Finish a claimed message."),
        Listed("fail", "messages.inbox:fail_app", "Make a dead letter of a claimed message."),
    ],
    "Agents": [
        Listed("agent", "programs.agent:app", "Agents: list, add (with their configuration), rm."),
        Listed("hook", "programs.hook:app", "Unread mail for an agent's session: for the agent's hooks."),
        Listed("mcp", "programs.mcp:app", "The bus as six tools for an agent that speaks MCP, over stdin and stdout."),
    ],
    "Repair": [
        Listed("dlq", "dead_letters.dlq:app", "Dead letters: list, show, plan, replay, edit, purge, export ..."),
    ],
    "Operate": [
        Listed("adapters", "operate.adapters:app", "Adapters: list, enable, disable, test, reload."),
        Listed("access", "operate.access:app", "Who may publish to what: list, add, rm."),
        Listed("token", "operate.access:token_app", "Tokens for agents: list, add, rm."),
        Listed("jobs", "operate.jobs:app", "Scheduled upkeep: list, run, cancel."),
        Listed("config", "operate.config:app", "The configuration in force: show, reload."),
        Listed("demo", "programs.demo:app", "The dashboard on live demo traffic."),
    ],
}
"""Every command, under the headings of ``relay --help``."""


LIGHT = {"hook": "relay_supervisor.agents.hooks.command", "mcp": "relay_supervisor.agents.mcp.command"}
"""Commands that agents start all the time: they import the standard library only."""


def main() -> None:
    """Run the command line."""
    import os
    import sys

    # Whoever called may have closed them.
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    light = light_command(sys.argv[1:])
    if light is not None:
        from importlib import import_module

        name, args = light
        code = import_module(LIGHT[name]).main(args)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # there is nothing left to tidy up, and that alone would take 4 ms
    # Pydantic would look through every installed package for plugins, a tenth of what a command takes.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")
    from relay_supervisor.cli.entry import enter
    from relay_supervisor.cli.groups import root_app

    enter(root_app(), "relay")


def light_command(args: list[str]) -> tuple[str, list[str]] | None:
    """Return which light command is called, and with what; None if none is, or if it is to be explained."""
    at = 0
    while at < len(args) and args[at].partition("=")[0] in ("--data-dir", "--socket", "--token"):
        at += 1 if "=" in args[at] else 2
    if at >= len(args) or args[at] not in LIGHT or "--help" in args:
        return None
    return args[at], args[:at] + args[at + 1 :]
