"""access-rules.json: the operator's access rules (rules/access.py), kept in step with the file.

1. The file is one JSON array of ``{"from", "to", "action", "priority"?}``. It is taken as a whole or
   not at all: a file that cannot be read, may be another user's, is not JSON, has an unknown key or a bad
   pattern is *broken*, and while it is broken everything is denied. An empty file is broken; ``[]`` is no rules.
2. No file when the bus starts means no rules. A file that disappears later changes nothing, not
   even a broken state: an editor that moves it away for an instant must not open a gap.
3. Until the first `load` everything is denied.
4. A change is written durably first and applied second, and it starts from the file as it stands,
   so that it does not undo an edit that the watcher has not reported yet.

`check` runs on the event loop and everything else may run in a thread: the rules are one immutable
table, replaced by one assignment.
"""

from __future__ import annotations

import threading
from pathlib import Path

import orjson

from relay_core.errors import ConfigError
from relay_core.rules.access import ALLOWED, AccessRule, AccessTable, AccessVerdict, parse_rules
from relay_core.storage.atomic_file import FileReader, atomic_write
from relay_core.storage.trusted_file import UntrustedFile, read_trusted


class AccessControl:
    """Check senders against the rules file and keep the two in step."""

    def __init__(self, path: Path, read: FileReader = read_trusted) -> None:
        self._path = path
        self._read = read
        self._lock = threading.RLock()
        self._loaded = False
        # None stands for no rules, the common case: one attribute test on the publish path. A text is the problem.
        self._table: AccessTable | str | None = f"{path} has not been loaded yet"

    @property
    def broken(self) -> str | None:
        """Return the problem with the rules file, or None."""
        return self._table if isinstance(self._table, str) else None

    def rules(self) -> list[AccessRule]:
        """Return the rules in the order of the file."""
        table = self._table
        return list(table.rules) if isinstance(table, AccessTable) else []

    def check(self, sender: str, subject: str) -> AccessVerdict:
        """Decide whether a sender may reach a subject."""
        table = self._table
        if table is None:
            return ALLOWED
        if isinstance(table, str):
            return AccessVerdict(False, reason=f"everything is denied until this is repaired: {table}")
        return table.check(sender, subject)

    def load(self) -> None:
        """Read the rules file; `broken` has the problem if it cannot be used. Blocks."""
        with self._lock:
            try:
                self._apply(parse_rules(self._read(self._path)))
            except FileNotFoundError:
                if not self._loaded:
                    self._table = None
            except OSError as error:
                self._table = f"cannot read {self._path}: {error.strerror}"
            except UntrustedFile as error:
                self._table = str(error)
            except ValueError as error:
                self._table = f"{self._path}: {error}"
            self._loaded = True

    def add_rule(self, rule: AccessRule) -> None:
        """Append a rule to the file, unless it is there already. Blocks.

        Raises:
            ConfigError: while the file is broken.
            StorageError: if it cannot be written; the rules stay as they were.
        """
        with self._lock:
            rules = self._current()
            if rule not in rules:
                self._store([*rules, rule])

    def remove_rule(self, sender: str, to: str) -> int:
        """Remove every rule with exactly these patterns and return how many there were. Blocks.

        Raises:
            ConfigError: while the file is broken.
            StorageError: if it cannot be written; the rules stay as they were.
        """
        with self._lock:
            rules = self._current()
            kept = [rule for rule in rules if (rule.sender, rule.to) != (sender, to)]
            if len(kept) < len(rules):
                self._store(kept)
            return len(rules) - len(kept)

    def _current(self) -> list[AccessRule]:
        self.load()
        if self.broken is not None:
            raise ConfigError(f"repair the file first: {self.broken}", path=str(self._path))
        return self.rules()

    def _store(self, rules: list[AccessRule]) -> None:
        data = orjson.dumps([rule.to_wire() for rule in rules], option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        atomic_write(self._path, data)
        self._apply(rules)

    def _apply(self, rules: list[AccessRule]) -> None:
        self._table = AccessTable.of(rules) if rules else None
