"""Relay's bus as an embeddable asyncio library.

The folders are the architecture, and each one's docstring says what belongs there. With twenty minutes, read in this
order:

1. `core.py` has the verbs; `messages/envelope.py` is a message, `errors.py` the errors.
2. `pipeline/stages.py` is the specification of a publish: eight stages in one list. Their rules are in `rules/`.
3. `storage/maildir.py` has the moves of a message; `journal/` makes them durable, and `journal/recovery.py` is the next
   start after a crash. Read these slowly.
4. `dispatch/dispatcher.py` decides which message is begun when; `handling.py` takes it to its end.
5. `deadletters/` keeps failed messages, and `replay.py` sends them again, never lost and never doubled.
6. `records/recorder.py` records every step, for the index, the event log and the metrics.
7. `adapters/interface.py` is the seam to other platforms; `protocol/methods.py` has one row for each method of the
   socket, for the supervisor and for `client/`.
8. `bus.py` wires the parts, and starts and stops them in order.

Layers, top to bottom: core, maintenance, bus; adapters, deadletters; pipeline; dispatch; client; protocol; records;
journal; storage; rules; messages. Nothing here imports the supervisor, the dashboard or Spark.

The public names are listed once, in the stub beside this file, as lazy_loader does it: a plain list of imports would
load the whole bus into every client.
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
