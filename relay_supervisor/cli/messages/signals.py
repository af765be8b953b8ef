"""``relay signal``: send a signal, or print signals until interrupted.

1. A signal reaches current listeners only. That none listens is not an error, and the sender is not told.
2. ``--watch`` prints a line per signal; with ``--json``, the subject and the signal as one JSON document per line. If
   the supervisor goes away, the command waits for it; signals in the meantime are lost.
3. SIGINT or SIGTERM ends ``--watch`` with exit code 0.
"""

from __future__ import annotations

import asyncio
import signal as process_signals
from typing import Annotated, Any

import typer

from relay_core.messages.signals import Signal, SignalType
from relay_supervisor.cli.arguments import complete_subject, parse_json
from relay_supervisor.cli.command import Session, command, print_json
from relay_supervisor.cli.entry import ExitCode, UsageError
from relay_supervisor.cli.groups import new_command
from relay_supervisor.cli.output import payload_text, safe

app = new_command()

_ENDING = (process_signals.SIGINT, process_signals.SIGTERM)


@command(
    app,
    more=f"Types: {', '.join(SignalType)}. The bus reports problems with its files on 'relay.system.>'.",
    examples=[
        "relay signal relay.agent.writer --type progress --state working --from relay.me",
        """relay signal relay.agent.writer --type presence --state away --data '{"until": "noon"}'""",
        "relay signal --watch 'relay.agent.>'",
        "relay signal --watch 'relay.system.>' --json | jq -c .signal.data",
    ],
)
async def send_or_watch(
    session: Session,
    subject: Annotated[
        str | None,
        typer.Argument(help="Destination; not a pattern.", metavar="SUBJECT", autocompletion=complete_subject),
    ] = None,
    type: Annotated[SignalType | None, typer.Option("--type", help="Type.", metavar="TYPE")] = None,
    state: Annotated[str | None, typer.Option(help="State, such as started.", metavar="STATE")] = None,
    about: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="The endpoint that the signal is about; by default SUBJECT itself.",
            metavar="SUBJECT",
            autocompletion=complete_subject,
        ),
    ] = None,
    data: Annotated[str | None, typer.Option(help="Details as JSON.", metavar="JSON")] = None,
    watch: Annotated[
        str | None,
        typer.Option(
            "--watch", "-w", help="Print the signals of a pattern.", metavar="PATTERN", autocompletion=complete_subject
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="With --watch: stop after this many signals.")
    ] = None,
) -> int:
    """Send a signal to current listeners, or print the signals of a pattern until interrupted."""
    if watch is not None:
        if any(value is not None for value in (subject, type, state, about, data)):
            raise UsageError("--watch takes a pattern: leave out SUBJECT, --type, --state, --from and --data")
        return await _watch(session, watch, limit)
    if subject is None:
        raise UsageError("SUBJECT is missing: use relay signal SUBJECT --type TYPE --state STATE, or --watch PATTERN")
    if type is None or state is None:
        raise UsageError("a signal needs --type and --state, such as --type progress --state working")
    if limit is not None:
        raise UsageError("--limit is for --watch")
    from relay_core.clock import SystemClock, iso

    sent = Signal(
        type=type,
        state=state,
        endpoint_subject=about or subject,
        timestamp=iso(SystemClock().now_ms()),
        data=parse_json(data, "--data") if data is not None else None,
    )
    await session.client.signal(subject, sent)
    session.show(
        {"subject": subject, "signal": sent.to_wire()}, lambda: [f"{type} {safe(state)} was sent to {safe(subject)}"]
    )
    return ExitCode.OK


async def _watch(session: Session, pattern: str, limit: int | None) -> int:
    interrupt = _Interrupt()
    loop = asyncio.get_running_loop()
    for number in _ENDING:
        loop.add_signal_handler(number, interrupt)
    try:
        async with session.client.signals(pattern) as signals:
            session.note(f"listening to {pattern}; press Ctrl-C to stop")
            printed = 0
            async for subject, signal in signals:
                if session.as_json:
                    print_json({"subject": subject, "signal": signal.to_wire()}, indent=False)
                else:
                    session.print([_line(subject, signal)])
                printed += 1
                if printed == limit:
                    break
    except asyncio.CancelledError:
        if not interrupt.came:
            raise
        interrupt.task.uncancel()
    finally:
        for number in _ENDING:
            loop.remove_signal_handler(number)
    return ExitCode.OK


class _Interrupt:
    """Cancel the command once."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.task = task
        self.came = False

    def __call__(self) -> None:
        if not self.came:
            self.came = True
            self.task.cancel()


def _line(subject: str, signal: Signal) -> str:
    parts: list[Any] = [signal.timestamp, subject, signal.type, signal.state]
    if signal.endpoint_subject != subject:
        parts += ["from", signal.endpoint_subject]
    line = " ".join(safe(part) for part in parts)
    return line if signal.data is None else f"{line} {payload_text(signal.data)}"
