"""For the tests of `relay mcp` and `relay hook`, `relay` is the command; the tests of a module share a supervisor."""

from __future__ import annotations

from tests.kit.cli import module_relay as relay

__all__ = ["relay"]
