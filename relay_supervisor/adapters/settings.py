"""The settings of an operator beside an adapter's config in adapters.json, for adapters of every type."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field

from relay_core.adapters.validation import AdapterSettings
from relay_supervisor.adapters.platform import PlatformConfig

PROBE_SECS = 30.0
_DAY_SECS = 86_400


class OperatorSettings(PlatformConfig):
    """Settings that win over the adapter's own attributes."""

    model_config: ClassVar[ConfigDict] = ConfigDict(strict=True)

    probe_secs: Annotated[float, Field(ge=1, le=_DAY_SECS)] = PROBE_SECS
    """Time between two health probes."""
    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] | None = None
    """If several adapters match, the highest priority goes first."""
    drain_secs: Annotated[float, Field(gt=0, le=_DAY_SECS)] | None = None
    """Time to finish messages in flight when a reload replaces it."""
    rate: Annotated[float, Field(gt=0, le=10_000)] | None = None
    """Messages per second that it is given at most; more than that wait."""

    @property
    def traits(self) -> AdapterSettings:
        """Return the settings of the bus."""
        return AdapterSettings(priority=self.priority, rate=self.rate, drain=self.drain_secs)


SETTINGS_KEYS = [field.alias or name for name, field in OperatorSettings.model_fields.items()]
