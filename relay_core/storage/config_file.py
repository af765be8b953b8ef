"""The configuration in force: defaults, then the constructor's, then config.json, merged per field.

config.json is reloaded when it changes. A bad one is reported, and the last good one stays in force.
"""

from __future__ import annotations

from relay_core.config import RelayConfig, load_config
from relay_core.errors import ConfigError
from relay_core.storage.data_dir import DataDir


class LiveConfig:
    """The configuration of a running bus; `config` is replaced as a whole by each reload."""

    def __init__(self, data_dir: DataDir, base: RelayConfig) -> None:
        self._data_dir = data_dir
        self._base = base
        self.config = base
        self.problem: str | None = None
        """Why the present config.json is not in force."""

    def load(self) -> None:
        """Read config.json.

        Raises:
            ConfigError: if it cannot be used; the previous configuration stays in force.
        """
        try:
            self.config = load_config(self._data_dir.config, self._base, self._data_dir.read)
        except ConfigError as error:
            self.problem = error.message
            raise
        self.problem = None

    @property
    def remembered_ms(self) -> int:
        """Return for how long an earlier publish may be asked about: its trace, its budget and its rate window."""
        config = self.config
        return max(config.retention.trace_ms, config.budget.ttl_ms, config.reliability.rate_limit.window_secs * 1000)
