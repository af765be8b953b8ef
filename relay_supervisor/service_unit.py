"""The supervisor as a user service: a systemd unit, or a launchd agent on macOS.

1. Exactly one file is written or removed, and nothing is started or stopped: the operator gets the commands for that. A
   file without our marker is never touched.
2. The hardening has two parts. The first works in every user manager: prctl and seccomp only. The second, the sandbox,
   is visible to programs and needs a user namespace (`PrivateUsers=`): without it a user manager cannot drop
   capabilities (the service ends with 218/CAPABILITIES) and ignores the mounts. Some machines forbid user namespaces
   (Ubuntu 24.04): `install_service` reports that, and `sandbox=False` omits the second part.
3. Omitted, because they would break programs that adapters start: MemoryDenyWriteExecute= (JIT compilers of node and
   Java), ProtectHome=, ProtectSystem=strict and PrivateTmp= (agents work in the user's files and use sockets in /tmp),
   PrivateDevices= (GPUs), PrivateNetwork= and IPAddressDeny= (Telegram, webhooks), SystemCallFilter=~@privileged
   @resources (chown to oneself, nice, affinity). Omitted, because user managers fail on them: ProtectKernelTunables=,
   ProtectKernelLogs= (226/NAMESPACE, seen with systemd 252), User=; DevicePolicy= has no effect. An ordinary user has
   none of the rights that these remove.
4. The sandbox has a cost: files of other users, including root, appear to belong to `nobody` (ssh refuses to include
   such a file), and a program cannot create a sandbox itself (bubblewrap, Chromium).
"""

from __future__ import annotations

import os
import plistlib
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from relay_core.errors import ConfigError
from relay_core.storage.atomic_file import atomic_write, storage_error

UNIT = "relay-supervisor.service"
LABEL = "relay.supervisor"
MARKER = "Written by 'relay-supervisor install-service'"

_UNIT_TEXT = """\
# {marker}: 'uninstall-service' removes it, changes belong in a drop-in (systemctl --user edit {unit}).
[Unit]
Description=Relay, the local message bus for AI agents
StartLimitIntervalSec=120
StartLimitBurst=10

[Service]
Type=notify
NotifyAccess=main
ExecStart={command}
ExecReload=/bin/kill -HUP $MAINPID
Environment={path}
Restart=on-failure
RestartSec=2
WatchdogSec=30
TimeoutStopSec=20
# Only the supervisor gets SIGTERM: programs of its adapters may finish.
KillMode=mixed
LimitNOFILE=8192
UMask=0077

NoNewPrivileges=yes
RestrictSUIDSGID=yes
RestrictRealtime=yes
LockPersonality=yes
ProtectHostname=yes
KeyringMode=private
SystemCallArchitectures=native
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
{sandbox}
[Install]
WantedBy=default.target
"""

_SANDBOX = """
# The sandbox. It needs a user namespace; 'relay-supervisor install-service --no-sandbox' omits it.
PrivateUsers=yes
CapabilityBoundingSet=
PrivateMounts=yes
ProtectSystem=full
ProtectControlGroups=yes
ProtectKernelModules=yes
ProtectClock=yes
ProtectProc=invisible
RestrictNamespaces=yes
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
"""

# The first steps of the user manager: create a user namespace (CLONE_NEWUSER), drop a capability (PR_CAPBSET_DROP).
_PROBE = """\
import ctypes
libc = ctypes.CDLL(None)
raise SystemExit(libc.unshare(0x10000000) != 0 or libc.prctl(24, 0, 0, 0, 0) != 0)
"""


class Installed(NamedTuple):
    """The service file, and the shell commands to run next (comments may be among them)."""

    path: Path
    next_steps: list[str]


def install_service(
    data_dir: Path,
    socket: Path | None = None,
    *,
    platform: str = sys.platform,
    home: Path | None = None,
    sandbox: bool = True,
) -> Installed:
    """Write the service file, unless it is up to date; blocks.

    Raises:
        ConfigError: if the file is not ours, or this system is not supported.
        StorageError: if it cannot be written.
    """
    path = service_path(platform=platform, home=home)
    command = _command(data_dir, socket)
    if platform == "darwin":
        text = _plist(command, home or Path.home())
        steps = [f"launchctl bootstrap gui/{os.getuid()} {shlex.quote(str(path))}"]
    else:
        text = _unit(command, sandbox=sandbox)
        steps = [
            "systemctl --user daemon-reload",
            f"systemctl --user enable --now {UNIT}",
            "loginctl enable-linger  # keeps it running while you are logged out",
        ]
        if sandbox and not user_namespaces_work():
            steps.insert(
                0,
                "# This machine does not allow user namespaces: the service would end with 218/CAPABILITIES, so "
                "run 'relay-supervisor install-service --no-sandbox' first",
            )
    _check_ours(path)
    try:
        data = text.encode()
        if not path.exists() or path.read_bytes() != data:
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(path, data, mode=0o644)
    except UnicodeEncodeError as error:
        raise ConfigError("a path is not UTF-8: choose another --data-dir or --socket", path=str(path)) from error
    except OSError as error:
        raise storage_error("write", path, error) from error
    return Installed(path, steps)


def uninstall_service(*, platform: str = sys.platform, home: Path | None = None) -> Installed:
    """Remove the service file, if it exists; blocks.

    Raises:
        ConfigError: if the file is not ours, or this system is not supported.
        StorageError: if it cannot be removed.
    """
    path = service_path(platform=platform, home=home)
    _check_ours(path)
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise storage_error("remove", path, error) from error
    if platform == "darwin":
        return Installed(path, [f"launchctl bootout gui/{os.getuid()}/{LABEL}"])
    return Installed(path, [f"systemctl --user disable --now {UNIT}", "systemctl --user daemon-reload"])


def service_path(*, platform: str = sys.platform, home: Path | None = None) -> Path:
    """Return the path of the service file.

    Raises:
        ConfigError: if this system is not supported.
    """
    if platform == "darwin":
        return (home or Path.home()) / "Library" / "LaunchAgents" / f"{LABEL}.plist"
    if not platform.startswith("linux"):
        raise ConfigError(f"user services are not supported on {platform}: start 'relay-supervisor run' by other means")
    config = os.environ.get("XDG_CONFIG_HOME", "")
    # The XDG rule: a path that is not absolute is ignored.
    base = Path(config) if os.path.isabs(config) else (home or Path.home()) / ".config"
    return base / "systemd" / "user" / UNIT


def user_namespaces_work() -> bool:
    """Return True if this user can create a user namespace and drop capabilities in it; blocks."""
    try:
        probe = [sys.executable, "-I", "-S", "-c", _PROBE]
        return subprocess.run(probe, capture_output=True, timeout=30, check=False).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


def is_ours(path: Path) -> bool:
    """Return True if `install_service` wrote this file."""
    if path.is_symlink():
        return False
    try:
        return any(MARKER.encode() in line for line in path.read_bytes().splitlines()[:4])
    except OSError:
        return False


def _check_ours(path: Path) -> None:
    if os.path.lexists(path) and not is_ours(path):
        raise ConfigError(f"{path} was not written by install-service: move it away first", path=str(path))


def _command(data_dir: Path, socket: Path | None) -> list[str]:
    if not sys.executable:
        raise ConfigError("this Python does not know its own path: run it by an absolute path")
    command = [sys.executable, "-m", "relay_supervisor", "run", "--data-dir", str(data_dir.expanduser().absolute())]
    if socket is not None:
        command += ["--socket", str(socket.expanduser().absolute())]
    return command


def _unit(command: list[str], *, sandbox: bool) -> str:
    if set(command[0]) & set("\"'\\"):
        raise ConfigError(f"systemd cannot start a program with quotes or backslashes in its path: {command[0]}")
    # The colon disables variables, so dollar signs need no escape. The PATH is the current one, so that adapters find
    # the same programs as the operator's shell.
    return _UNIT_TEXT.format(
        marker=MARKER,
        unit=UNIT,
        command=" ".join([_quote(":" + command[0]), *map(_quote, command[1:])]),
        path=_quote("PATH=" + os.environ.get("PATH", os.defpath)),
        sandbox=_SANDBOX if sandbox else "",
    )


def _quote(text: str) -> str:
    """Quote a word for systemd: C escapes within double quotes, and no specifiers."""
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return '"' + "".join(f"\\x{ord(char):02x}" if char < " " else char for char in text) + '"'


def _plist(command: list[str], home: Path) -> str:
    agent = {
        "Label": LABEL,
        "ProgramArguments": command,
        "EnvironmentVariables": {"PATH": os.environ.get("PATH", os.defpath)},
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ExitTimeOut": 20,
        "SoftResourceLimits": {"NumberOfFiles": 8192},
        "Umask": 0o077,
        "StandardErrorPath": str(home / "Library" / "Logs" / "relay-supervisor.log"),
    }
    try:
        text = plistlib.dumps(agent).decode()
    except ValueError as error:
        raise ConfigError(f"a path cannot be written in XML: {error}") from error
    return text.replace("<plist ", f"<!-- {MARKER}: 'uninstall-service' removes it. -->\n<plist ", 1)
