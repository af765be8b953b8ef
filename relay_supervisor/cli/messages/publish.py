"""``relay publish``: one message, one request with its reply, or many messages (batch.py).

1. The payload is JSON from the command line or from stdin: with ``-``, or if it is missing and stdin is not a terminal.
2. A message without a recipient (all refused it, or there is no consumer) is exit code 4.
3. ``--wait`` receives the reply in a private mailbox and prints the first one. A failure notice counts as a reply, with
   exit code 1.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relay_supervisor.cli.arguments import complete_subject, parse_json, read_payload, read_stdin
from relay_supervisor.cli.command import Session, command, print_json
from relay_supervisor.cli.entry import ExitCode, Failed, UsageError
from relay_supervisor.cli.groups import new_command
from relay_supervisor.cli.output import payload_text, safe

if TYPE_CHECKING:
    from relay_core.messages.envelope import Envelope
    from relay_core.messages.results import PublishResult

app = new_command()


@command(
    app,
    more=(
        'Each line of a batch is {"subject", "payload", "from"?, "replyTo"?, "budget"?, "parentId"?, '
        '"dedupeId"?}. A batch stops at the first invalid line.'
    ),
    examples=[
        """relay publish relay.agent.writer '{"content": "hi"}' --from relay.me""",
        "relay publish relay.agent.writer --from relay.me --text 'hi there' --wait",
        "jq -c . report.json | relay publish relay.agent.writer - --from relay.me",
        "relay publish --batch messages.jsonl --from relay.me",
    ],
)
async def publish(
    session: Session,
    subject: Annotated[
        str | None,
        typer.Argument(help="Destination: a subject or a pattern.", metavar="SUBJECT", autocompletion=complete_subject),
    ] = None,
    payload: Annotated[str | None, typer.Argument(help="Payload as JSON, or - for stdin.", metavar="JSON|-")] = None,
    sender: Annotated[
        str | None, typer.Option("--from", help="Sender.", metavar="SUBJECT", autocompletion=complete_subject)
    ] = None,
    reply_to: Annotated[str | None, typer.Option(help="Where replies go.", metavar="SUBJECT")] = None,
    budget: Annotated[
        str | None, typer.Option(help='Lower limits than the defaults, such as {"maxHops": 2}.', metavar="JSON")
    ] = None,
    parent: Annotated[str | None, typer.Option(help="The message that caused this one.", metavar="ID")] = None,
    dedupe: Annotated[
        str | None,
        typer.Option(help="Publish only once, even if repeated with this id; with --batch, per line.", metavar="ID"),
    ] = None,
    text: Annotated[bool, typer.Option("--text", help="The payload is plain text, sent as its content.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for a reply and print it.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait with --wait.", min=0.001)] = 30.0,
    batch: Annotated[
        str | None, typer.Option(help="Publish every JSON line of a file, or of stdin (-).", metavar="FILE|-")
    ] = None,
) -> int:
    """Publish a message, or the messages in a file."""
    overrides = _budget(budget)
    if batch is not None:
        if subject is not None or wait or text:
            raise UsageError("--batch reads everything from its lines: leave out SUBJECT, --wait and --text")
        from relay_supervisor.cli.messages.batch import publish_batch

        defaults = {"from": sender, "replyTo": reply_to, "budget": overrides, "parentId": parent}
        return await publish_batch(session, batch, defaults, dedupe)
    if subject is None:
        raise UsageError("SUBJECT is missing: use relay publish SUBJECT JSON --from SENDER")
    if sender is None:
        raise UsageError("--from is missing: name the sender, such as --from relay.agent.me")
    if wait and reply_to is not None:
        raise UsageError("--wait receives the reply in a private mailbox: leave out --reply-to")
    value = _payload(payload, text)
    options: dict[str, Any] = {"budget": overrides, "parent_id": parent, "dedupe_id": dedupe}
    if wait:
        return await _request(session, subject, value, sender, timeout, options)
    result = await session.client.publish(subject, value, sender=sender, reply_to=reply_to, **options)
    session.show(result.to_wire(), lambda: _result_lines(result))
    if not result.delivered_to:
        session.note(f"relay: not delivered to {subject}: {refusal(result)}")
        return ExitCode.REFUSED
    return ExitCode.OK


async def _request(
    session: Session, subject: str, payload: Any, sender: str, timeout: float, options: dict[str, Any]
) -> int:
    try:
        answer = await session.client.request(subject, payload, sender=sender, timeout=timeout, **options)
    except TimeoutError:
        raise Failed(
            f"no reply from {subject} within {timeout:g} s: check with 'relay endpoints' that it has a reader, or wait "
            "longer with --timeout",
            ExitCode.TIMED_OUT,
        ) from None
    if session.as_json:
        print_json(answer.to_wire())
    else:
        print_json(answer.payload, indent=sys.stdout.isatty())
    session.note(f"relay: reply {answer.id} from {safe(answer.sender)}")
    failure = _failure(answer)
    if failure is not None:
        session.note(f"relay: not delivered to {subject}: {failure}")
        return ExitCode.ERROR
    return ExitCode.OK


def refusal(result: PublishResult) -> str:
    """Return why a message has no recipient."""
    reasons = [rejection.reason for rejection in result.rejected or ()]
    adapters = result.adapter_results or ()
    reasons += [adapter.error or adapter.status for adapter in adapters if adapter.status != "delivered"]
    return ", ".join(dict.fromkeys(reasons)) or "no consumer; it is a dead letter now, see 'relay dlq'"


def _result_lines(result: PublishResult) -> Iterator[str]:
    yield f"{result.message_id}  delivered to {result.delivered_to}"
    for rejection in result.rejected or ():
        yield f"  {safe(rejection.endpoint_hash)} refused: {safe(rejection.reason)}"
    for adapter in result.adapter_results or ():
        error = f": {safe(adapter.error)}" if adapter.error else ""
        yield f"  adapter {safe(adapter.adapter_id)}: {safe(adapter.status)}{error}"


def _failure(answer: Envelope) -> str | None:
    """Return the reason if a reply is a failure notice from the bus."""
    payload = answer.payload
    if not isinstance(payload, dict) or payload.get("performative") != "failure":
        return None
    code = (payload.get("platformData") or {}).get("code")
    return f"{payload_text(payload)}{f' ({code})' if code else ''}"


def _payload(given: str | None, text: bool) -> Any:
    if given is None:
        if sys.stdin.isatty():
            raise UsageError("the payload is missing: give it as JSON, as - for stdin, or with --text")
        given = "-"
    if not text:
        return read_payload(given)
    if given != "-":
        return {"content": given}
    try:
        return {"content": read_stdin().decode().removesuffix("\n")}
    except UnicodeDecodeError as error:
        raise UsageError(f"stdin is not UTF-8 text: invalid byte at position {error.start}") from None


def _budget(given: str | None) -> dict[str, Any] | None:
    if given is None:
        return None
    value = parse_json(given, "--budget")
    if not isinstance(value, dict):
        raise UsageError('--budget must be a JSON object, such as {"maxHops": 2}')
    from relay_core.config import explain_unknown
    from relay_core.messages.envelope import BudgetOverrides

    known = [field.alias or name for name, field in BudgetOverrides.model_fields.items()]
    if (unknown := next((key for key in value if key not in known), None)) is not None:
        # The bus ignores unknown keys: a limit with a typo would not limit anything.
        raise UsageError(f"--budget: {explain_unknown(unknown, known)}")
    return value
