"""The paths of the data directory and the socket.

The `*_name` functions return text, for programs that must import little because every prompt of an agent starts them
(relay_supervisor/agents/light); the `*_path` functions return paths.
"""

from __future__ import annotations

import os

from relay_core import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

DEFAULT_DATA_DIR = "~/.dork/relay"

_AnyPath = str | os.PathLike[str] | None


def data_name(chosen: _AnyPath = None) -> str:
    """Return the data directory: as chosen, else RELAY_DATA_DIR, else in the home directory."""
    return _absolute(chosen or os.environ.get("RELAY_DATA_DIR") or DEFAULT_DATA_DIR)


def socket_name(chosen: _AnyPath = None, data_dir: _AnyPath = None) -> str:
    """Return the socket: as chosen, else RELAY_SOCKET, else in the runtime directory, else in the data directory."""
    if chosen or os.environ.get("RELAY_SOCKET"):
        return _absolute(chosen or os.environ["RELAY_SOCKET"])
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isabs(runtime):
        return os.path.join(runtime, "relay", "relay.sock")
    return os.path.join(data_name(data_dir), "relay.sock")


def agent_token_name(data_dir: str, subject: str) -> str:
    """Return the file with the token of an agent that `relay agent add` has added."""
    return os.path.join(data_dir, "agents", f"{subject}.token")


def data_path(chosen: _AnyPath = None) -> Path:
    """Return the data directory as a path."""
    from pathlib import Path

    return Path(data_name(chosen))


def socket_path(chosen: _AnyPath = None, data_dir: _AnyPath = None) -> Path:
    """Return the socket as a path."""
    from pathlib import Path

    return Path(socket_name(chosen, data_dir))


def operator_token_path(data_dir: Path) -> Path:
    """Return the file with the operator's token."""
    return data_dir / "operator.token"


def _absolute(path: str | os.PathLike[str]) -> str:
    return os.path.join(os.getcwd(), os.path.expanduser(path)) if not os.path.isabs(path) else os.fspath(path)
