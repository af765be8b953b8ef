"""Where things are: the data directory and the socket, unless somebody says otherwise."""

from __future__ import annotations

import os
from pathlib import Path

DEFAULT_DATA_DIR = Path("~/.dork/relay")

_AnyPath = str | os.PathLike[str] | None


def data_path(chosen: _AnyPath = None) -> Path:
    """Return the data directory: as chosen, else RELAY_DATA_DIR, else in the home directory."""
    return Path(chosen or os.environ.get("RELAY_DATA_DIR") or DEFAULT_DATA_DIR).expanduser().absolute()


def socket_path(chosen: _AnyPath = None, data_dir: _AnyPath = None) -> Path:
    """Return the socket: as chosen, else RELAY_SOCKET, else in the runtime directory, else in the data directory."""
    if chosen or os.environ.get("RELAY_SOCKET"):
        return Path(chosen or os.environ["RELAY_SOCKET"]).expanduser().absolute()
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and Path(runtime).is_absolute():
        return Path(runtime) / "relay" / "relay.sock"
    return data_path(data_dir) / "relay.sock"


def operator_token_path(data_dir: Path) -> Path:
    """Return the file that makes whoever can read it the operator."""
    return data_dir / "operator.token"
