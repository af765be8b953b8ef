"""``relay publish``: one message, one request with its answer, or many messages (batch.py).

1. The payload is JSON from the command line, or from stdin: by ``-``, or when it is missing and stdin is no terminal.
2. A message that nobody took (refused, or nobody is there) is exit code 4, though its publish was answered.
3. ``--wait`` asks through a private mailbox: the first answer is printed. A failure notice is an answer too, one that
   says why there will be no other: exit code 1.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relay_supervisor.cli.arguments import complete_subject, parse_json, read_stdin
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
        'A line of a batch is {"subject", "payload", "from"?, "replyTo"?, "budget"?, "parentId"?, '
        '"dedupeId"?}; a bad line ends it.'
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
        typer.Argument(help="Where to, or a pattern.", metavar="SUBJECT", autocompletion=complete_subject),
    ] = None,
    payload: Annotated[str | None, typer.Argument(help="JSON, or - for stdin.", metavar="JSON|-")] = None,
    sender: Annotated[
        str | None, typer.Option("--from", help="Who says it.", metavar="SUBJECT", autocompletion=complete_subject)
    ] = None,
    reply_to: Annotated[str | None, typer.Option(help="Where answers are to go.", metavar="SUBJECT")] = None,
    budget: Annotated[
        str | None, typer.Option(help='Less than the ceilings, such as {"maxHops": 2}.', metavar="JSON")
    ] = None,
    parent: Annotated[str | None, typer.Option(help="The message that this one follows from.", metavar="ID")] = None,
    dedupe: Annotated[
        str | None,
        typer.Option(help="Publish once, however often this is repeated; with --batch, each line.", metavar="ID"),
    ] = None,
    text: Annotated[bool, typer.Option("--text", help="The payload is text, sent as its content.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the answer and print it.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds that --wait waits.", min=0.001)] = 30.0,
    batch: Annotated[
        str | None, typer.Option(help="Publish the JSON lines of a file, or of stdin (-).", metavar="FILE|-")
    ] = None,
) -> int:
    """Publish a message, or the messages in a file."""
    overrides = _budget(budget)
    if batch is not None:
        if subject is not None or wait or text:
            raise UsageError("--batch takes everything from its lines: give no SUBJECT, --wait or --text")
        from relay_supervisor.cli.messages.batch import publish_batch

        defaults = {"from": sender, "replyTo": reply_to, "budget": overrides, "parentId": parent}
        return await publish_batch(session, batch, defaults, dedupe)
    if subject is None:
        raise UsageError("SUBJECT is missing: relay publish SUBJECT JSON --from SENDER")
    if sender is None:
        raise UsageError("--from is missing: say who publishes, such as --from relay.agent.me")
    if wait and reply_to is not None:
        raise UsageError("--wait has a private mailbox for the answer: leave out --reply-to")
    value = _payload(payload, text)
    options: dict[str, Any] = {"budget": overrides, "parent_id": parent, "dedupe_id": dedupe}
    if wait:
        return await _request(session, subject, value, sender, timeout, options)
    result = await session.client.publish(subject, value, sender=sender, reply_to=reply_to, **options)
    session.show(result.to_wire(), lambda: _result_lines(result))
    if not result.delivered_to:
        why = refusal(result)
        session.note(f"relay: {subject} did not get the message: {why}")
        return ExitCode.REFUSED
    return ExitCode.OK


async def _request(
    session: Session, subject: str, payload: Any, sender: str, timeout: float, options: dict[str, Any]
) -> int:
    try:
        answer = await session.client.request(subject, payload, sender=sender, timeout=timeout, **options)
    except TimeoutError:
        raise Failed(
            f"no answer from {subject} within {timeout:g} s: 'relay endpoints' shows whether somebody reads it; "
            "--timeout waits longer",
            ExitCode.TIMED_OUT,
        ) from None
    if session.as_json:
        print_json(answer.to_wire())
    else:
        print_json(answer.payload, indent=sys.stdout.isatty())
    session.note(f"relay: answer {answer.id} from {safe(answer.sender)}")
    failure = _failure(answer)
    if failure is not None:
        session.note(f"relay: {subject} could not be delivered to: {failure}")
        return ExitCode.ERROR
    return ExitCode.OK


def refusal(result: PublishResult) -> str:
    """Return why nobody took a message."""
    reasons = [one.reason for one in result.rejected or ()]
    reasons += [one.error or one.status for one in result.adapter_results or () if one.status != "delivered"]
    return ", ".join(dict.fromkeys(reasons)) or "nobody is there; it is a dead letter ('relay dlq')"


def _result_lines(result: PublishResult) -> Iterator[str]:
    yield f"{result.message_id}  delivered to {result.delivered_to}"
    for rejection in result.rejected or ():
        yield f"  {safe(rejection.endpoint_hash)} refused: {safe(rejection.reason)}"
    for one in result.adapter_results or ():
        yield f"  adapter {safe(one.adapter_id)}: {safe(one.status)}{f': {safe(one.error)}' if one.error else ''}"


def _failure(answer: Envelope) -> str | None:
    """Return the reason if an answer is the bus's notice of a failure."""
    payload = answer.payload
    if not isinstance(payload, dict) or payload.get("performative") != "failure":
        return None
    code = (payload.get("platformData") or {}).get("code")
    return f"{payload_text(payload)}{f' ({code})' if code else ''}"


def _payload(given: str | None, text: bool) -> Any:
    data: str | bytes
    if given == "-" or (given is None and not sys.stdin.isatty()):
        data, what = read_stdin(), "stdin"
    elif given is None:
        raise UsageError("the payload is missing: give it as JSON, as - for stdin, or with --text")
    else:
        data, what = given, "the payload"
    if not text:
        return parse_json(data, what)
    try:
        return {"content": data if isinstance(data, str) else data.decode().removesuffix("\n")}
    except UnicodeDecodeError as error:
        raise UsageError(f"{what} is no UTF-8 text: byte {error.start} is wrong") from None


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
        # The bus passes over what it does not know: a limit with a typo in it would be none.
        raise UsageError(f"--budget: {explain_unknown(unknown, known)}")
    return value
