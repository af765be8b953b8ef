from __future__ import annotations

import os
import plistlib
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from relay_core.errors import ConfigError, StorageError
from relay_supervisor.service_unit import (
    LABEL,
    MARKER,
    UNIT,
    Installed,
    install_service,
    service_path,
    uninstall_service,
    user_namespaces_work,
)

DATA = Path("/data/relay")
AWKWARD = [
    "/data/with space",
    "/data/50%h",
    "/data/it's",
    '/data/"quoted"',
    "/data/back\\slash\\n",
    "/data/$HOME ${HOME}",
    "/data/; rm -rf <&> #",
    "/data/ünï→",
]
PLATFORMS = ["linux", "darwin"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if not path.is_dir())


def unescape(line: str) -> list[str]:
    # What systemd does with a line that has no variables: quotes and C escapes, then specifiers.
    words = re.findall(r'"((?:[^"\\]|\\.)*)"', line)
    unquoted = [re.sub(r"\\(x..|.)", lambda found: _plain(found[1]), word) for word in words]
    assert not any(re.search("%[^%]", word.replace("%%", "")) for word in unquoted)
    return [word.replace("%%", "%") for word in unquoted]


def _plain(escape: str) -> str:
    return chr(int(escape[1:], 16)) if escape[0] == "x" and len(escape) > 1 else escape


def command_of(installed: Installed) -> list[str]:
    if installed.path.suffix == ".plist":
        arguments: list[str] = plistlib.loads(installed.path.read_bytes())["ProgramArguments"]
        return arguments
    line = re.search(r"^ExecStart=(.*)$", installed.path.read_text(), re.M)
    assert line is not None
    words = unescape(line[1])
    assert words[0].startswith(":")  # no variables
    return [words[0][1:], *words[1:]]


@pytest.mark.parametrize(
    ("platform", "place"),
    [("linux", f".config/systemd/user/{UNIT}"), ("darwin", f"Library/LaunchAgents/{LABEL}.plist")],
)
def test_installing_writes_one_file_and_uninstalling_removes_it(home: Path, platform: str, place: str) -> None:
    installed = install_service(DATA, platform=platform)
    assert installed.path == home / place
    assert files(home) == [installed.path]
    assert installed.path.stat().st_mode & 0o777 == 0o644
    assert uninstall_service(platform=platform).path == installed.path
    assert files(home) == []


@pytest.mark.parametrize("platform", PLATFORMS)
def test_installing_again_changes_nothing(platform: str) -> None:
    first = install_service(DATA, platform=platform)
    inode = first.path.stat().st_ino
    assert install_service(DATA, platform=platform) == first
    assert first.path.stat().st_ino == inode


@pytest.mark.parametrize("platform", PLATFORMS)
def test_installing_with_other_options_replaces_our_own_file(platform: str) -> None:
    install_service(DATA, platform=platform)
    installed = install_service(Path("/other"), Path("/run/r.sock"), platform=platform)
    assert command_of(installed)[-4:] == ["--data-dir", "/other", "--socket", "/run/r.sock"]


@pytest.mark.parametrize("platform", PLATFORMS)
def test_uninstalling_what_is_not_installed_is_no_error(platform: str) -> None:
    assert not uninstall_service(platform=platform).path.exists()


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("what", ["file", "symlink", "dangling"])
def test_a_foreign_file_is_never_touched(tmp_path: Path, platform: str, what: str) -> None:
    path = service_path(platform=platform)
    path.parent.mkdir(parents=True)
    if what == "file":
        path.write_text("[Service]\nExecStart=/bin/mine\n")
    else:
        target = tmp_path / "elsewhere"
        path.symlink_to(target)
        if what == "symlink":  # even if it leads to a file like ours
            target.write_text(f"# {MARKER}\n")
    before = path.lstat()
    with pytest.raises(ConfigError, match="was not written by install-service"):
        install_service(DATA, platform=platform)
    with pytest.raises(ConfigError, match="was not written by install-service"):
        uninstall_service(platform=platform)
    after = path.lstat()  # looked into, but not changed
    assert (after.st_ino, after.st_mode, after.st_ctime_ns) == (before.st_ino, before.st_mode, before.st_ctime_ns)


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("path", AWKWARD)
def test_every_path_reaches_the_supervisor_as_it_is(platform: str, path: str) -> None:
    installed = install_service(Path(path), Path(path, "s"), platform=platform)
    run = [sys.executable, "-m", "relay_supervisor", "run", "--data-dir", path, "--socket", f"{path}/s"]
    assert command_of(installed) == run


@pytest.mark.parametrize("platform", PLATFORMS)
def test_relative_paths_are_made_absolute(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str
) -> None:
    monkeypatch.chdir(tmp_path)
    installed = install_service(Path("here"), Path("~/r.sock"), platform=platform)
    assert command_of(installed)[-3::2] == [str(tmp_path / "here"), str(home / "r.sock")]


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_path_that_cannot_be_written_is_refused(home: Path, platform: str) -> None:
    with pytest.raises(ConfigError):
        install_service(Path(os.fsdecode(b"/data/\xff")), platform=platform)
    assert files(home) == []


def test_the_service_finds_the_programs_that_the_shell_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/opt/50%/my bin:/usr/bin")
    line = next(
        line for line in install_service(DATA, platform="linux").path.read_text().splitlines() if "PATH" in line
    )
    assert line.startswith("Environment=")
    assert unescape(line) == ["PATH=/opt/50%/my bin:/usr/bin"]
    agent = plistlib.loads(install_service(DATA, platform="darwin").path.read_bytes())
    assert agent["EnvironmentVariables"] == {"PATH": "/opt/50%/my bin:/usr/bin"}


def test_xdg_config_home_says_where_units_are(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert service_path(platform="linux") == tmp_path / "config/systemd/user" / UNIT
    monkeypatch.setenv("XDG_CONFIG_HOME", "not/absolute")
    assert service_path(platform="linux") == home / ".config/systemd/user" / UNIT


def test_a_home_can_be_given(tmp_path: Path) -> None:
    assert service_path(platform="darwin", home=tmp_path).is_relative_to(tmp_path)
    assert install_service(DATA, platform="linux", home=tmp_path / "other").path.is_relative_to(tmp_path / "other")


def test_a_system_without_user_services_says_so() -> None:
    with pytest.raises(ConfigError, match="user services are not supported on win32"):
        install_service(DATA, platform="win32")


def test_a_directory_that_cannot_be_made_is_a_storage_error(home: Path) -> None:
    home.write_text("in the way")
    with pytest.raises(StorageError):
        install_service(DATA, platform="linux")


@pytest.mark.parametrize(
    ("platform", "install", "uninstall"),
    [
        (
            "linux",
            ["systemctl --user daemon-reload", f"systemctl --user enable --now {UNIT}", "loginctl enable-linger"],
            [f"systemctl --user disable --now {UNIT}", "systemctl --user daemon-reload"],
        ),
        (
            "darwin",
            [f"launchctl bootstrap gui/{os.getuid()} PATH"],
            [f"launchctl bootout gui/{os.getuid()}/{LABEL}"],
        ),
    ],
    ids=PLATFORMS,
)
def test_the_next_steps_are_shell_lines(
    tmp_path: Path, platform: str, install: list[str], uninstall: list[str]
) -> None:
    installed = install_service(DATA, platform=platform, home=tmp_path / "my home")
    steps = [shlex.split(step, comments=True) for step in installed.next_steps]
    expected = [[word.replace("PATH", str(installed.path)) for word in step.split()] for step in install]
    assert [step for step in steps if step] == expected
    assert uninstall_service(platform=platform, home=tmp_path / "my home").next_steps == uninstall


def test_a_machine_without_user_namespaces_is_told_before_it_fails() -> None:
    warned = "--no-sandbox" in install_service(DATA, platform="linux").next_steps[0]
    assert warned is not user_namespaces_work()
    assert "--no-sandbox" not in "".join(install_service(DATA, platform="linux", sandbox=False).next_steps)


NO_NAMESPACES = """
from pathlib import Path
from relay_supervisor.service_unit import install_service
Path("/proc/sys/user/max_user_namespaces").write_text("0")
print(install_service(Path("/data"), platform="linux").next_steps[0])
"""


def test_a_refused_user_namespace_is_noticed() -> None:
    # Within a user namespace of our own the limit is ours to set. Root keeps the right to drop capabilities
    # there, so it is the namespace itself that must be refused.
    unshare = ["unshare", "--user", "--map-root-user"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"], capture_output=True).returncode != 0:
        pytest.skip("this machine allows no user namespaces")
    child = subprocess.run([*unshare, sys.executable, "-c", NO_NAMESPACES], capture_output=True, text=True, timeout=60)
    assert child.stdout.startswith("# This machine does not allow user namespaces"), child.stderr


def test_without_its_sandbox_the_unit_keeps_what_works_everywhere() -> None:
    whole = install_service(DATA, platform="linux").path.read_text()
    plain = install_service(DATA, platform="linux", sandbox=False).path.read_text()
    assert set(plain.splitlines()) < set(whole.splitlines())
    assert "NoNewPrivileges=yes" in plain
    for needs_a_namespace in ("PrivateUsers", "CapabilityBoundingSet", "Protect(System|Clock|KernelModules|Proc)"):
        assert re.search(f"^{needs_a_namespace}=", whole, re.M)
        assert not re.search(f"^{needs_a_namespace}=", plain, re.M)


@pytest.mark.parametrize(
    "line",
    [
        "Type=notify",
        "NotifyAccess=main",
        "WatchdogSec=30",
        "Restart=on-failure",
        "TimeoutStopSec=20",
        "ExecReload=/bin/kill -HUP $MAINPID",
        "LimitNOFILE=8192",
        "UMask=0077",
        "WantedBy=default.target",
    ],
)
def test_the_unit_says(line: str) -> None:
    assert line in install_service(DATA, platform="linux").path.read_text().splitlines()


@pytest.mark.parametrize(
    "forbidden", ["MemoryDenyWriteExecute", "ProtectHome", "PrivateNetwork", "IPAddressDeny", "User"]
)
def test_the_unit_lets_adapters_work(forbidden: str) -> None:
    text = install_service(DATA, platform="linux").path.read_text()
    assert not re.search(f"^{forbidden}=", text, re.M)
    families = re.search("^RestrictAddressFamilies=(.*)$", text, re.M)
    assert families is not None
    assert {"AF_UNIX", "AF_INET", "AF_INET6"} <= set(families[1].split())


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze")
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, timeout=60)


def test_the_unit_is_exposed_at_no_more_than_three() -> None:
    path = install_service(DATA, platform="linux").path
    found = analyze("security", "--offline=yes", "--no-pager", str(path))
    if "unrecognized option" in found.stderr:
        pytest.skip("this systemd-analyze looks at no files")
    level = re.search(r"Overall exposure level for .*: (\d+\.\d+)", found.stdout)
    assert level is not None, found.stderr
    assert float(level[1]) <= 3.0


@pytest.mark.parametrize("sandbox", [True, False], ids=["sandbox", "no-sandbox"])
@pytest.mark.parametrize("path", ["/data/relay", *AWKWARD])
def test_systemd_finds_no_fault_in_the_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, sandbox: bool
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    unit = install_service(Path(path), Path(path, "s"), platform="linux", sandbox=sandbox).path
    found = analyze("verify", "--user", "--man=no", str(unit))
    assert (found.returncode, found.stdout + found.stderr) == (0, "")


def test_systemd_finds_an_executable_of_an_awkward_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "50%h $HOME ; x" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    unit = install_service(DATA, platform="linux").path
    found = analyze("verify", "--user", "--man=no", str(unit))
    assert (found.returncode, found.stdout + found.stderr) == (0, "")
    python.unlink()
    assert "not executable" in analyze("verify", "--user", "--man=no", str(unit)).stderr  # it did look for it


@pytest.mark.parametrize("character", ["'", '"', "\\"])
def test_an_executable_that_systemd_would_not_start_is_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch, character: str
) -> None:
    monkeypatch.setattr(sys, "executable", f"/opt/a{character}b/python")
    with pytest.raises(ConfigError, match="quotes or backslashes"):
        install_service(DATA, platform="linux")
    assert files(home) == []
