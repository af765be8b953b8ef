"""docs/configuration.md, made from the models: `python -m relay_core.config_docs > docs/configuration.md`.

1. Keys, types, defaults and limits are read off the models, what a key means is the text below it in the source: the
   page cannot say anything else than the supervisor does.
2. When a change takes effect is not in the models. `IN_FORCE` says it for every key, and a key that it forgets makes
   no page; a test changes the file of a running supervisor and looks.
3. The files whose models are not the core's are told of in words, with the page that has more.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterable, Iterator
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from pydantic.fields import FieldInfo

from relay_core.access import AccessRule
from relay_core.config import RelayConfig, Section
from relay_core.docstrings import field_texts

COMMAND = "python -m relay_core.config_docs > docs/configuration.md"

AT_ONCE = "at once"
RESTART = "restart"

IN_FORCE = {
    "durability": RESTART,
    "reliability": AT_ONCE,
    "budget": AT_ONCE,
    "limits.maxPayloadBytes": "lower: at once; higher: restart",
    "limits.dedupeEntries": RESTART,
    "limits.maxBroadcastBytes": AT_ONCE,
    "limits.maxReplyMailboxes": AT_ONCE,
    "limits.maxEndpointsPerToken": AT_ONCE,
    "limits.maxSubscriptionsPerToken": AT_ONCE,
    "dispatch": AT_ONCE,
    "retention": AT_ONCE,
    "events": AT_ONCE,
    "auth": "new connections",
    "jobs": AT_ONCE,
    "logs": "SIGHUP or restart",
    "prometheus": RESTART,
    "telemetry": RESTART,
}
"""When a change of a key, or of all keys below it, takes effect."""

_PATTERNS = {"^([01]": "`HH:MM`, from `00:00` to `23:59`", "^(/|": "an absolute path or a URI"}
"""Limits that are regular expressions, by how they begin, in words."""

_SIMPLE = {bool: "true or false", int: "whole number", float: "number", str: "text"}
_PLURAL = {int: "whole numbers", str: "texts"}

EXAMPLE = """\
{
  "durability": "fsync",
  "reliability": {
    "rateLimit": {"maxPerWindow": 200, "perSenderOverrides": {"relay.agent.ci": 1000}},
    "backpressure": {"maxMailboxSize": 5000}
  },
  "budget": {"maxHops": 8},
  "dispatch": {"handlerTimeoutMs": 120000},
  "retention": {"unreadMs": 1209600000, "deadLetterMs": 2592000000},
  "auth": {"requireTokens": true},
  "jobs": {"metrics": {"at": "04:30"}},
  "logs": {"level": "warning", "format": "json"}
}
"""

_INTRODUCTION = f"""\
# Configuration

<!-- Made from relay_core/config.py. Do not edit; run: {COMMAND} -->

For whoever runs a supervisor. Nothing has to be configured. What can be is in files of the data directory
(`~/.dork/relay`, or `$RELAY_DATA_DIR`), private to you (0600 in a directory of 0700). `relay config` shows every key
with the value that was read, `relay-supervisor doctor` looks at all the files and says how to repair what it finds,
also while no supervisor runs.

| file | what it says | a change is in force |
|---|---|---|
| `config.json` | limits, times, jobs, logs: [below](#configjson) | as you save it, but for some keys |
| `access-rules.json` | who may publish to what: [below](#access-rulesjson) | as you save it |
| `adapters.json` | bridges to the outside, chats and agents: [docs/adapters](adapters/README.md) | as you save it |
| `tokens.json` | who may speak as whom; use `relay token` | `relay config reload`, SIGHUP or restart |
| `agents.json` | the agents that were added; use `relay agent` | restart |
| `agents/SUBJECT.token` | an agent's own token, for `relay mcp` and `relay hook` | made by `relay agent add` |
| `operator.token` | makes whoever can read it the operator | made anew at each start |

What a bad file does:

- `config.json`: a supervisor that runs keeps what it had, and says so in its log, in `relay status`, `relay config`
  and the dashboard. One that starts refuses to, with the same sentence (exit code 1). A file that is removed means
  the defaults, at once.
- `access-rules.json`: everything is denied until it is repaired. A file that is removed changes nothing until the
  next start.
- `tokens.json` that is broken, or that others can read: no token is good until it is repaired. The operator's own
  still is.
- `agents.json`, which is read at the start alone: descriptions are missing, and no agent can be added or removed until
  it is repaired and the supervisor restarted. Nothing else is affected. What you write into it while a supervisor runs
  is lost with the next `relay agent add` or `relay agent rm`.
- `adapters.json`: a bad entry is left out and named, the others run. A file that is no JSON at all changes nothing
  that runs.

`relay config reload` and SIGHUP (`systemctl --user reload relay-supervisor`) read all of them again but
`agents.json`. The log's level and format follow SIGHUP only.

## config.json

One JSON object; each key is optional. Objects are merged key by key over the defaults, so say only what differs. An
unknown key is an error that names the nearest known one. Comments are not JSON. An example:

```json
{EXAMPLE}```

Times are in the unit that the key's name ends in: `Ms` milliseconds, `Secs` seconds, `Days` days. *In force* says
when a change takes effect in a supervisor that runs:

- **at once**: when the file is saved; for what is already under way, from its next step on;
- **new connections**: those that are open keep what they had;
- **SIGHUP or restart**: saving the file alone is not enough;
- **restart**: `relay config` shows the new value, and the old one holds until then.
"""

_LIMITS_NOTE = """\
A message is read with the limit of the last start. So raise `maxPayloadBytes` and restart: until then a larger
payload is taken, and set aside as `malformed` when it is read. After lowering it far (by more than 64 KiB) and a
restart, the same happens to larger ones that still wait. A frame of the socket has 4 MiB at most, whatever this limit
says.
"""

_RULES = """\
## access-rules.json

A JSON array. The highest priority that matches both sender and subject decides; if none matches, the message may
pass. For a broadcast (a publish to a pattern) each endpoint is judged by itself. `relay access` lists, adds and
removes rules; they hold at once.

```json
[
  {"from": "relay.agent.intern", "to": "relay.agent.>", "action": "deny", "priority": 10},
  {"from": "relay.agent.intern", "to": "relay.agent.backend", "action": "allow", "priority": 20}
]
```
"""

_ENVIRONMENT = """\
## Environment

Options of a command come before variables, variables before defaults. A service has the environment of its unit, not
of your shell: `systemctl --user edit relay-supervisor` adds `Environment=` lines.

| variable | who reads it | meaning |
|---|---|---|
| `RELAY_DATA_DIR` | all | The data directory; else `~/.dork/relay`. |
| `RELAY_SOCKET` | all | The socket; else `$XDG_RUNTIME_DIR/relay/relay.sock`, or `relay.sock` in the data directory. |
| `RELAY_SERVER_UID` | all clients | Another uid whose supervisor they may talk to; else only your own. |
| `RELAY_TOKEN` | `relay`, `relay-tui`, `relay mcp`, `relay hook`, `RelayClient` | Be the agent that has this token. |
| `RELAY_DEBUG` | `relay`, `relay-supervisor` | If set, an error shows where in the code it came from. |
| `RELAY_THEME` | `relay-tui` | Its colours; `relay-tui --help` lists them. |
| `RELAY_KEYS` | `relay-tui` | The file with keys of your own; else `$XDG_CONFIG_HOME/relay/keys.toml`. |
| `RELAY_MESSAGE_ID`, `RELAY_MESSAGE_SUBJECT` | commands of `relay subscribe --exec` | Set for them: the message. |
| `RELAY_MESSAGE_FROM`, `RELAY_REPLY_TO` | the same | Set for them: who wrote it, and where an answer goes. |
| `RELAY_JOB_OPTIONS` | a `jobs.metrics.command` of yours | Set for it: the days that were asked for, as options. |
| `RELAY_PARENT_PIPE` | processes of the nightly job | Set for them: their stdin ends when the supervisor does. |
| `RELAY_CLAUDE_LAUNCH` | the `claude-code` adapter's launcher | Set for it; nothing to set by hand. |
| `XDG_RUNTIME_DIR` | all | Where the socket is, and what the dashboard has copied (else `~/.cache`). |
| `XDG_CONFIG_HOME` | `install-service`, `relay-tui` | Where units, keys and templates are; else `~/.config`. |
| `XDG_STATE_HOME` | `relay-tui`, `relay hook` | What was published by hand, or shown; else `~/.local/state`. |
| `XDG_CACHE_HOME` | `spark` | The prepared Java; else `~/.cache`. |
| `JAVA_HOME`, `SPARK_HOME` | `spark` | A Java and a Spark of your own: [docs/reports.md](reports.md). |
| `VISUAL`, `EDITOR` | `relay-tui` | What edits a dead letter; else `vi`. |
| `NO_COLOR` | `relay` | If set, no colours. |
| `NOTIFY_SOCKET`, `WATCHDOG_USEC` | `relay-supervisor` | Set by systemd: readiness and the watchdog. |

Secrets of adapters may name any other variable (`env:NAME`): [docs/adapters](adapters/README.md#secrets).
"""


class Key(NamedTuple):
    """A key of config.json that holds a value."""

    name: str
    """With those that it is below, such as ``budget.maxHops``."""
    field: FieldInfo
    default: Any
    text: str

    @property
    def in_force(self) -> str:
        """Say when a change takes effect."""
        parts = self.name.split(".")
        names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
        return next(IN_FORCE[name] for name in names if name in IN_FORCE)


def config_markdown() -> str:
    """Return the page."""
    parts = [_INTRODUCTION]
    for name, field in RelayConfig.model_fields.items():
        parts.append(f"### {name}\n")
        section = getattr(RelayConfig(), name)
        if isinstance(section, Section):
            parts += [f"{_about(section)}\n", *_subsections(name, section), _table(keys(section, name))]
        else:
            text = field_texts(RelayConfig).get(name, "")
            parts.append(_table([Key(name, field, section, text)]))
        parts += [_LIMITS_NOTE] if name == "limits" else []
    parts += [_RULES, *_rules(), _ENVIRONMENT]
    return "\n".join(parts).rstrip() + "\n"


def keys(section: Section, prefix: str = "") -> Iterator[Key]:
    """Yield every key of a section and of those within it; of the whole configuration if it is that."""
    texts = field_texts(type(section))
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        shown = f"{prefix}.{field.alias}" if prefix else str(field.alias)
        if isinstance(value, Section):
            yield from keys(value, shown)
        else:
            yield Key(shown, field, value, texts.get(name, ""))


def _subsections(prefix: str, section: Section) -> Iterator[str]:
    texts = field_texts(type(section))
    rows = []
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, Section):
            rows.append(f"- `{prefix}.{field.alias}`: {texts.get(name) or _about(value)}\n")
    if rows:
        yield "".join(rows)


def _rules() -> Iterator[str]:
    rows, texts = [], field_texts(AccessRule)
    for name, field in AccessRule.model_fields.items():
        default = "needed" if field.is_required() else f"`{json.dumps(field.default)}`"
        rows.append([f"`{field.alias or name}`", _type(field.annotation), default, texts[name]])
    yield _rows(["key", "type", "default", "meaning"], rows)


def _table(found: Iterable[Key]) -> str:
    rows = [
        [
            f"`{key.name}`",
            _type(key.field.annotation),
            _default(key),
            _allowed(key.field),
            key.in_force,
            " ".join(key.text.split()),
        ]
        for key in found
    ]
    return _rows(["key", "type", "default", "allowed", "in force", "meaning"], rows)


def _default(key: Key) -> str:
    if key.default is None:
        return "none"
    shown = f"`{json.dumps(key.default, default=list)}`"
    words = _in_words(key)
    return f"{shown} ({words})" if words else shown


def _in_words(key: Key) -> str | None:
    """Return a large number in the unit that people would say."""
    units = {
        "Ms": [("days", 86_400_000), ("hours", 3_600_000), ("minutes", 60_000), ("s", 1000)],
        "Secs": [("days", 86_400), ("hours", 3600), ("minutes", 60)],
        "Bytes": [("MiB", 1024 * 1024)],
    }
    for ending, sizes in units.items():
        if key.name.endswith(ending):
            for unit, size in sizes:
                if key.default >= size and key.default % size == 0:
                    return f"{key.default // size} {unit if key.default > size else unit.removesuffix('s') or unit}"
    return None


def _type(annotation: Any) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if annotation in _SIMPLE:
        return _SIMPLE[annotation]
    if origin is Annotated:
        return _type(inner[0])
    if origin is Literal:
        *first, last = (f"`{json.dumps(one)}`" for one in inner)
        return f"{', '.join(first)} or {last}"
    if origin is tuple:
        return f"list of {_PLURAL[_bare(inner[0])]}"
    if origin is dict:
        return f"object of {_PLURAL[_bare(inner[1])]}"
    return " or ".join(_type(one) for one in inner if one is not NoneType)


def _bare(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _allowed(field: FieldInfo) -> str:
    """Return the limits of a value, or of each value within it, in words."""
    found = {
        name: getattr(limit, name)
        for limit in _limits(field)
        for name in ("ge", "le", "min_length", "pattern")
        if getattr(limit, name, None) is not None
    }
    if "pattern" in found:
        return next(words for begin, words in _PATTERNS.items() if found["pattern"].startswith(begin))
    if "min_length" in found:
        return "not empty"
    if "le" in found:
        return f"{found['ge']} to {found['le']}"
    return f"{found['ge']} or more" if "ge" in found else ""


def _limits(field: FieldInfo) -> Iterator[Any]:
    yield from field.metadata
    waiting = [field.annotation]
    while waiting:
        annotation = waiting.pop()
        if get_origin(annotation) is Annotated:
            for one in get_args(annotation)[1:]:
                yield from one.metadata if isinstance(one, FieldInfo) else [one]
        waiting += [one for one in get_args(annotation) if not isinstance(one, str)]


def _about(section: Section) -> str:
    return re.sub(r"\s+", " ", inspect.getdoc(section) or "")


def _rows(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


if __name__ == "__main__":
    sys.stdout.write(config_markdown())
