"""Relay's bus as an embeddable asyncio library.

The folders are the architecture; each one's docstring says what belongs there and what it may import. To read the code
in twenty minutes, follow this order:

1. `core.py` has the verbs, `messages/envelope.py` a message, `errors.py` the errors.
2. `pipeline/stages.py` specifies a publish: eight stages in one list. Their rules are in `rules/`.
3. `storage/maildir.py` moves a message between directories, `journal/` makes the moves durable, and
   `journal/recovery.py` completes them after a crash. Read these slowly.
4. `dispatch/dispatcher.py` decides which message starts when, `dispatch/turns.py` begins and ends messages in batches,
   and `dispatch/handling.py` decides what becomes of each.
5. `deadletters/` stores failed messages; `deadletters/replay.py` sends them again, without loss or duplicates.
6. `records/recorder.py` records every step in the index, the event log and the metrics.
7. `adapters/interface.py` is the seam to other platforms. `protocol/methods.py` has one row per method of the socket,
   shared by the supervisor and `client/`.
8. `bus.py` wires the parts, and starts and stops them in order.

Layers, top to bottom: testing; core; maintenance, operator_state; bus; adapters, deadletters; pipeline; dispatch;
client; protocol; records; journal; storage; rules; messages; config, limited_log, paths, tasks, text; clock; errors. A
module may import the layers below its own. Nothing here imports the supervisor, the dashboard or Spark.

The public names are listed once, in the stub beside this file, and are imported when first used: a plain list of
imports would load the whole bus into every client.
"""

from __future__ import annotations

__version__ = "0.1.0"
TYPE_CHECKING = False  # type checkers go by the name; importing `typing` would cost every `relay hook` 9 ms


def _public() -> dict[str, str]:
    """Return each public name with its module, as the stub lists them."""
    import re
    from pathlib import Path

    stub = Path(__file__).with_suffix(".pyi").read_text()
    return {name: module for module, name in re.findall(r"^from (\S+) import (\w+) as", stub, re.MULTILINE)}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used: a client of the supervisor does not need the bus."""
    from importlib import import_module

    if name == "__all__":
        return sorted(_public())
    module = None if name.startswith("__") else _public().get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(module), name)
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *_public()])
