"""Generate docs/configuration.md from the models: `python -m tools.docs.configuration > docs/configuration.md`.

1. Keys, types, defaults and limits are read from the models, and the meaning of a key is the text below it in the
   source, so the page cannot contradict the supervisor.
2. When a change takes effect is not in the models. `IN_FORCE` says it for every key, and a missing key fails the
   generation; a test changes the file of a running supervisor and checks it.
3. Keys of one section that differ only in the part before their last name share a line.
4. Files whose models are not the core's are described in prose, with a link.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterator
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from relay_core.config import ConfigSection, RelayConfig, ScheduleConfig
from relay_core.rules.access import AccessRule
from tools.docs.docstrings import field_texts
from tools.docs.markdown import item, paragraph

COMMAND = "python -m tools.docs.configuration > docs/configuration.md"

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
    "schedules": AT_ONCE,
    "logs": "SIGHUP or restart",
    "prometheus": RESTART,
    "telemetry": RESTART,
}
"""When a change of a key, or of all keys below it, takes effect."""

_PATTERNS = {"^([01]": "`HH:MM`, from `00:00` to `23:59`", "^(/|": "an absolute path or a URI"}
"""Limits that are regular expressions, by how they begin, in words."""

_SIMPLE = {bool: "boolean", int: "integer", float: "number", str: "string"}

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

<!-- Generated from relay_core/config.py. Do not edit; run: {COMMAND} -->

Nothing has to be configured. Settings are files in the data directory (`~/.dork/relay`, or `$RELAY_DATA_DIR`), private
to you (0600 in a directory of 0700). `relay config` shows every key with its value. `relay-supervisor doctor` checks
all files, also while no supervisor runs, and says how to repair them.

| file | holds | a change takes effect |
|---|---|---|
| `config.json` | limits, times, jobs, logs: [below](#configjson) | when saved, except for some keys |
| `access-rules.json` | who may publish to what: [below](#access-rulesjson) | when saved |
| `adapters.json` | adapters, chats and agents: [docs/adapters](adapters/README.md) | when saved |
| `tokens.json` | tokens; use `relay token` | `relay config reload`, SIGHUP or restart |
| `agents.json` | registered agents; use `relay agent` | restart |
| `agents/SUBJECT.token` | an agent's token, for `relay mcp` and `relay hook` | written by `relay agent add` |
| `operator.token` | the operator's token | replaced at each start |
| `schedule-state.json` | last runs and paused schedules; use `relay schedules` | written by the supervisor |

`relay config reload` and SIGHUP (`systemctl --user reload relay-supervisor`) reload all of them except `agents.json`.
The log's level and format follow SIGHUP only.

If a file is invalid:

- `config.json`: a running supervisor keeps its settings and reports the error in its log, in `relay status`,
  `relay config` and the dashboard. A starting one exits with the same error (code 1). If the file is removed, the
  defaults apply at once.
- `access-rules.json`: everything is denied until it is repaired. Removing the file has no effect until the next start.
- `tokens.json`, also if others can read it: no token is accepted until it is repaired, except the operator's.
- `agents.json`: descriptions are missing, and agents cannot be added or removed until it is repaired and the supervisor
  restarted. Edits made while a supervisor runs are lost with the next `relay agent add` or `relay agent rm`.
- `schedule-state.json`: schedules run only by hand until it is repaired or removed, and reloaded.
- `adapters.json`: a bad entry is skipped and reported; the others run. If the file is not JSON, running adapters
  continue unchanged.

## config.json

One JSON object; each key is optional. Objects are merged key by key over the defaults. An unknown key is an error that
names the nearest known one. JSON has no comments. An example:

```json
{EXAMPLE}```

Times are in the unit at the end of the key: `Ms` milliseconds, `Secs` seconds, `Days` days. A change takes effect:

- **at once**: when the file is saved; work in progress follows at its next step;
- **new connections**: open connections keep the old value;
- **SIGHUP or restart**: saving the file is not enough;
- **restart**: `relay config` shows the new value, but the old one is used until then.
"""

_LIMITS_NOTE = """\
Stored messages are read with the limit of the last start. Restart after raising `maxPayloadBytes`: until then, a larger
payload is accepted but becomes a dead letter (`malformed`) when it is read. The same happens to larger waiting messages
if you lower it by more than 64 KiB and restart. A socket frame is limited to 4 MiB in any case.
"""

_SCHEDULES_NOTE = """\
[Operations](operations.md#scheduled-messages) has an example. A cron field is `*`, or values and ranges separated by
commas; `/n` after `*` or a range takes every n-th value. Months and days of the week may be names (`jan`, `mon`);
Sunday is 0 and 7. If both days are restricted, either is enough. Each schedule has these keys:
"""

_RULES = """\
## access-rules.json

A JSON array. The rule with the highest priority that matches both sender and subject decides; without a match, the
message may pass. A broadcast (a publish to a pattern) is checked for each endpoint. `relay access` lists, adds and
removes rules, with immediate effect.

```json
[
  {"from": "relay.agent.intern", "to": "relay.agent.>", "action": "deny", "priority": 10},
  {"from": "relay.agent.intern", "to": "relay.agent.backend", "action": "allow", "priority": 20}
]
```
"""

_ENVIRONMENT = """\
## Environment

Command-line options override variables. A service has the environment of its unit, not of your shell:
`systemctl --user edit relay-supervisor` adds `Environment=` lines.

- `RELAY_DATA_DIR`: the data directory; default `~/.dork/relay`.
- `RELAY_SOCKET`: the socket; default `$XDG_RUNTIME_DIR/relay/relay.sock`, else `relay.sock` in the data directory.
- `RELAY_SERVER_UID`: clients also accept a supervisor of this uid; default: only your own.
- `RELAY_TOKEN`: the token with which `relay`, `relay-tui`, `relay mcp`, `relay hook` and `RelayClient` identify
  themselves.
- `RELAY_DEBUG`: if set, errors of `relay` and `relay-supervisor` include a traceback.
- `RELAY_THEME`: the dashboard's theme; `relay-tui --help` lists them.
- `RELAY_KEYS`: the dashboard's key bindings; default `$XDG_CONFIG_HOME/relay/keys.toml`.
- `XDG_RUNTIME_DIR`: holds the socket, and text copied in the dashboard (else `~/.cache`).
- `XDG_CONFIG_HOME`: holds service units, key bindings and templates; default `~/.config`.
- `XDG_STATE_HOME`: holds the history of the dashboard and of `relay hook`; default `~/.local/state`.
- `XDG_CACHE_HOME`: holds the Java that `spark` has unpacked; default `~/.cache`.
- `JAVA_HOME`, `SPARK_HOME`: your own Java and Spark ([docs/reports.md](reports.md)).
- `VISUAL`, `EDITOR`: the editor for dead letters; default `vi`.
- `NO_COLOR`: if set, `relay` prints no colours.

Relay sets these for the processes that it starts; there is no need to set them yourself:

- `RELAY_MESSAGE_ID`, `RELAY_MESSAGE_SUBJECT`, `RELAY_MESSAGE_FROM`, `RELAY_REPLY_TO`: the message, for commands of
  `relay subscribe --exec`.
- `RELAY_JOB_OPTIONS`: the requested days as options, for a `jobs.metrics.command`.
- `RELAY_PARENT_PIPE`: for the nightly job, whose stdin ends with the supervisor.
- `RELAY_CLAUDE_LAUNCH`: for the launcher of the `claude-code` adapter.

systemd sets `NOTIFY_SOCKET` and `WATCHDOG_USEC` for the supervisor. Secrets of adapters may name any other variable
(`env:NAME`): [docs/adapters](adapters/README.md#secrets).
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
        """Return when a change takes effect."""
        parts = self.name.split(".")
        names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
        return next(IN_FORCE[name] for name in names if name in IN_FORCE)


def config_markdown() -> str:
    """Return the page."""
    parts = [_INTRODUCTION]
    for name, field in RelayConfig.model_fields.items():
        parts.append(f"### {name}\n")
        section = getattr(RelayConfig(), name)
        if isinstance(section, ConfigSection):
            found = list(keys(section, name))
            parts += [f"{paragraph(' '.join([_about(section), *_common(found)]))}\n", *_subsections(name, section)]
        else:
            found = [Key(name, field, section, field_texts(RelayConfig).get(name, ""))]
        parts.append("".join(_lines(found)))
        if name == "schedules":
            parts += [_SCHEDULES_NOTE, "".join(_fields(ScheduleConfig))]
        parts += [_LIMITS_NOTE] if name == "limits" else []
    parts += [_RULES, "".join(_fields(AccessRule)), _ENVIRONMENT]
    return "\n".join(parts).rstrip() + "\n"


def keys(section: ConfigSection, prefix: str = "") -> Iterator[Key]:
    """Yield every key of a section and of those within it."""
    texts = field_texts(type(section))
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        shown = f"{prefix}.{field.alias}" if prefix else str(field.alias)
        if isinstance(value, ConfigSection):
            yield from keys(value, shown)
        else:
            yield Key(shown, field, value, texts.get(name, ""))


def _subsections(prefix: str, section: ConfigSection) -> Iterator[str]:
    texts = field_texts(type(section))
    rows = []
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, ConfigSection):
            rows.append(f"- `{prefix}.{field.alias}`: {texts.get(name) or _about(value)}\n")
    if rows:
        yield "".join(rows)


def _fields(model: type[BaseModel]) -> Iterator[str]:
    texts = field_texts(model)
    for name, field in model.model_fields.items():
        kind = ", ".join(filter(None, [_type(field.annotation), _allowed(field)]))
        given = "none" if field.default is None else f"`{json.dumps(field.default, default=str)}`"
        default = "" if field.is_required() else f", default {given}"
        yield item(f"`{field.alias or name}`: {kind}{default}. {' '.join(texts[name].split())}")


def _common(found: list[Key]) -> list[str]:
    """Return when a change of any key takes effect, if that is the same for all."""
    words = {key.in_force for key in found}
    return [f"Changes take effect: **{words.pop()}**."] if len(words) == 1 and len(found) > 1 else []


def _lines(found: list[Key]) -> Iterator[str]:
    """Yield a line for each key, or one for all keys that have the same last name and text."""
    in_common = bool(_common(found))
    alike: dict[tuple[str, ...], list[Key]] = {}
    for key in found:
        kind = ", ".join(filter(None, [_type(key.field.annotation), _allowed(key.field)]))
        effect = "" if in_common else f", **{key.in_force}**"
        alike.setdefault((key.name.rpartition(".")[2], kind, effect, key.text), []).append(key)
    for (_, kind, effect, text), same in alike.items():
        defaults = {_default(key) for key in same}
        if len(defaults) == 1:
            names = ", ".join(f"`{key.name}`" for key in same)
            kind += f", default {defaults.pop()}"
        else:
            names = ", ".join(f"`{key.name}` (default {_default(key)})" for key in same)
        yield item(f"{names}: {kind}{effect}. {' '.join(text.split())}")


def _default(key: Key) -> str:
    if key.default is None:
        return "none"
    shown = f"`{json.dumps(key.default, default=list)}`"
    words = _in_words(key)
    return f"{shown} ({words})" if words else shown


def _in_words(key: Key) -> str | None:
    """Return a large number in a convenient unit."""
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
    if annotation is Any:
        return "any JSON"
    if inspect.isclass(annotation) and issubclass(annotation, ConfigSection):
        return "objects"
    if annotation in _SIMPLE:
        return _SIMPLE[annotation]
    if origin is Annotated:
        return _type(inner[0])
    if origin is Literal:
        *first, last = (f"`{json.dumps(value)}`" for value in inner)
        return f"{', '.join(first)} or {last}"
    if origin is tuple:
        return f"array of {_type(inner[0])}"
    if origin is dict:
        return f"object of {_type(inner[1])}"
    return " or ".join(_type(member) for member in inner if member is not NoneType)


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
            for limit in get_args(annotation)[1:]:
                yield from limit.metadata if isinstance(limit, FieldInfo) else [limit]
        waiting += [inner for inner in get_args(annotation) if not isinstance(inner, str)]


def _about(section: ConfigSection) -> str:
    return re.sub(r"\s+", " ", inspect.getdoc(section) or "")


if __name__ == "__main__":
    sys.stdout.write(config_markdown())
