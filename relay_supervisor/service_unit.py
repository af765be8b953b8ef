"""The supervisor as a service of the user: a systemd unit, or a launchd agent on macOS.

1. Exactly one file is written or removed, and nothing is started or stopped: the operator gets the
   commands for that. A file that lacks our marker is never touched.
2. The hardening is in two parts. The first works in every user manager: prctl and seccomp, nothing else.
   The second, the sandbox, is noticed by programs and needs a user namespace of its own (`PrivateUsers=`):
   without one, a user manager cannot drop capabilities (the service ends with 218/CAPABILITIES) and
   passes over the mounts. Some machines refuse that (Ubuntu 24.04): `install_service` says so, and
   `sandbox=False` leaves the second part out.
3. Left out, because what adapters start would not work: MemoryDenyWriteExecute= (node and Java compile as
   they run), ProtectHome=, ProtectSystem=strict and PrivateTmp= (agents work in the user's files and use
   the sockets in /tmp), PrivateDevices= (GPUs), PrivateNetwork= and IPAddressDeny= (Telegram, webhooks),
   SystemCallFilter=~@privileged @resources (chown to oneself, nice, affinity).
   Left out, because user managers fail on them: ProtectKernelTunables=, ProtectKernelLogs=
   (226/NAMESPACE, seen with systemd 252), User=, and DevicePolicy= is without effect. No user may do what they forbid.
4. What the sandbox costs: files of other users, root too, look like nobody's (ssh refuses an Include of such a
   file), and a program cannot make a sandbox of its own (bubblewrap, Chromium).
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
# {marker}: 'uninstall-service' removes it, changes belong into a drop-in (systemctl --user edit {unit}).
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
# Only the supervisor gets SIGTERM: what its adapters have started may finish.
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
# The sandbox. It needs a user namespace; 'relay-supervisor install-service --no-sandbox' leaves it out.
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

# What the user manager does first: a user namespace (CLONE_NEWUSER), then a capability less (PR_CAPBSET_DROP).
_PROBE = """\
import ctypes
libc = ctypes.CDLL(None)
raise SystemExit(libc.unshare(0x10000000) != 0 or libc.prctl(24, 0, 0, 0, 0) != 0)
"""


class Installed(NamedTuple):
    """The service's file, and the shell lines that come next (a comment may be among them)."""

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
    """Write the service's file; the same again changes nothing. Blocks.

    Raises:
        ConfigError: if the file is not ours, or this system has no such services.
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
            "loginctl enable-linger  # so that it also runs while you are logged out",
        ]
        if sandbox and not user_namespaces_work():
            steps.insert(
                0,
                "# This machine lets users make no user namespaces, so the service would end with 218/CAPABILITIES: "
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
    """Remove the service's file, if there is one. Blocks.

    Raises:
        ConfigError: if the file is not ours, or this system has no such services.
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
    """Return where the service's file belongs.

    Raises:
        ConfigError: if this system has no such services.
    """
    if platform == "darwin":
        return (home or Path.home()) / "Library" / "LaunchAgents" / f"{LABEL}.plist"
    if not platform.startswith("linux"):
        raise ConfigError(f"there are no user services for {platform}: start 'relay-supervisor run' by other means")
    config = os.environ.get("XDG_CONFIG_HOME", "")
    # The XDG rule: a path that is not absolute is ignored.
    base = Path(config) if os.path.isabs(config) else (home or Path.home()) / ".config"
    return base / "systemd" / "user" / UNIT


def user_namespaces_work() -> bool:
    """Tell whether a process of this user can make a user namespace and drop capabilities in it. Blocks."""
    try:
        probe = [sys.executable, "-I", "-S", "-c", _PROBE]
        return subprocess.run(probe, capture_output=True, timeout=30, check=False).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


def is_ours(path: Path) -> bool:
    """Tell whether `install_service` wrote this file."""
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
        raise ConfigError("this Python does not know its own path: call it by an absolute one")
    command = [sys.executable, "-m", "relay_supervisor", "run", "--data-dir", str(data_dir.expanduser().absolute())]
    if socket is not None:
        command += ["--socket", str(socket.expanduser().absolute())]
    return command


def _unit(command: list[str], *, sandbox: bool) -> str:
    if set(command[0]) & set("\"'\\"):
        raise ConfigError(f"systemd starts no program with quotes or backslashes in its path: {command[0]}")
    # The colon turns off variables: no dollar sign needs care. The PATH is today's, so that adapters find the
    # programs that the operator's shell finds.
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
