"""From an entry to an adapter: where its type is looked for, and what is refused before it runs."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relay_core.adapters.validation import read_shape
from relay_core.errors import ConfigError
from relay_supervisor.adapters import loading
from relay_supervisor.adapters.file import Entry
from relay_supervisor.adapters.loading import find_type, prepare, redact_values
from relay_supervisor.observability.redaction import redact_text
from relay_supervisor.observability.secrets import SecretRedactor
from tests.kit.adapters import DIARY_PLUGIN

OUTBOUND = {"url": "https://x.test/"}
INBOUND = {"port": 1, "subject": "relay.in.x"}
CANARY = "SECRET-CANARY"
MINIMAL = """
from relay_core import AdapterStatus
class adapter:
    patterns = ["relay.out.>"]
    status = AdapterStatus("disconnected")
    def __init__(self, id, config): self.id, self.config = id, config
    async def start(self, context): ...
    async def stop(self): ...
    async def deliver(self, envelope, context): ...
"""


@pytest.fixture(autouse=True)
def _forget_plugins() -> Iterator[None]:
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("relay_plugin"):
            del sys.modules[name]


@pytest.fixture
def plugin(data_dir: Path) -> Path:
    path = data_dir / "plugins" / "diary.py"
    path.parent.mkdir(mode=0o700)
    shutil.copyfile(DIARY_PLUGIN, path)
    path.chmod(0o600)
    return path


def entry(path: str | Path | None = None, **parts: Any) -> Entry:
    return Entry("x", path=str(path) if path is not None else None, **parts)


def refusal(entry: Entry, directory: Path) -> str:
    with pytest.raises(ConfigError) as error:
        prepare(entry, directory, SecretRedactor()).make()
    assert "\n" not in error.value.message
    assert CANARY not in f"{error.value!r} {error.value.__cause__!r}"
    return error.value.message


# Where a type comes from


def install(site: Path, name: str, points: str, code: str) -> None:
    """Install a package as pip does."""
    (site / f"{name}.py").write_text(code)
    about = site / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[relay.adapters]\n{points}\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "site-packages"
    path.mkdir()
    monkeypatch.syspath_prepend(path)
    return path


def test_a_type_is_found_among_the_entry_points(site: Path, data_dir: Path) -> None:
    install(site, "relay_smoke_signals", "smoke = relay_smoke_signals:adapter", MINIMAL)
    adapter = prepare(entry(type="smoke", config={"wind": 3}), data_dir, SecretRedactor()).make()
    assert (adapter.id, adapter.config) == ("x", {"wind": 3})  # type: ignore[attr-defined]


def test_a_built_in_type_is_not_replaced_by_an_entry_point(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(site, "relay_impostor", "ours = relay_impostor:adapter", MINIMAL)
    monkeypatch.setitem(loading.BUILT_IN, "ours", "tests.kit.adapters:SampleAdapter")
    assert find_type("ours").__name__ == "SampleAdapter"


@pytest.mark.parametrize(
    ("points", "code", "problem"),
    [
        pytest.param("bad = relay_bad:adapter", "import nothing_of_that_name", "ModuleNotFoundError", id="import"),
        pytest.param("bad = relay_bad:adaptor", MINIMAL, "cannot be imported: AttributeError", id="attribute"),
        pytest.param("bad = relay_bad:adapter", "raise SystemExit(3)", "cannot be imported: SystemExit", id="exits"),
        pytest.param("bad = relay_bad:adapter", "adapter = 7", "must be a class or a function", id="no class"),
    ],
)
def test_an_entry_point_that_cannot_be_used_is_refused(
    points: str, code: str, problem: str, site: Path, data_dir: Path
) -> None:
    install(site, "relay_bad", points, code)
    try:
        assert problem in refusal(entry(type="bad"), data_dir)
    finally:
        sys.modules.pop("relay_bad", None)


def test_an_unknown_type_is_named_with_the_nearest_one(site: Path, data_dir: Path) -> None:
    assert refusal(entry(type="smok"), data_dir) == (
        "unknown adapter type 'smok'; there are: claude-code, nats, telegram, webhook"
    )
    install(site, "relay_smoke", "smoke = relay_smoke:adapter", MINIMAL)
    assert refusal(entry(type="smok"), data_dir) == "unknown adapter type 'smok', did you mean 'smoke'?"


# Plugin files


def test_a_plugin_is_looked_for_from_the_data_directory_or_by_its_whole_path(plugin: Path, data_dir: Path) -> None:
    config = {"diary": str(data_dir / "diary")}
    for path in ("plugins/diary.py", plugin):
        assert read_shape(prepare(entry(path, config=config), data_dir, SecretRedactor()).make()).id == "x"


def test_a_plugin_is_run_anew_each_time_and_the_last_good_one_stays_known(plugin: Path, data_dir: Path) -> None:
    first, other = (prepare(entry(plugin, config={"diary": "d"}), data_dir, SecretRedactor()).make() for _ in range(2))
    assert type(first) is not type(other)
    plugin.write_text("broken =")
    assert "cannot be run: SyntaxError" in refusal(entry(plugin), data_dir)
    assert sys.modules[type(other).__module__].adapter is type(other)


def test_a_plugin_without_a_config_model_gets_its_config_as_it_is(plugin: Path, data_dir: Path) -> None:
    plugin.write_text(MINIMAL)
    adapter = prepare(entry(plugin, config={"a": [1]}), data_dir, SecretRedactor()).make()
    assert adapter.config == {"a": [1]}  # type: ignore[attr-defined]


def test_a_function_may_make_the_adapter(plugin: Path, data_dir: Path) -> None:
    plugin.write_text(MINIMAL.replace("class adapter", "class Mine") + "def adapter(id, config): return Mine(id, 7)\n")
    assert prepare(entry(plugin), data_dir, SecretRedactor()).make().config == 7  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        pytest.param("adapter = ", "cannot be run: SyntaxError", id="no Python"),
        pytest.param("\0", "cannot be run: ", id="binary"),
        pytest.param("1 / 0", "cannot be run: ZeroDivisionError: division by zero", id="raises"),
        pytest.param("import sys; sys.exit(1)", "cannot be run: SystemExit: 1", id="exits"),
        pytest.param("Adapter = object", "adapter must be a class or a function", id="no adapter"),
        pytest.param("adapter = object", "it cannot be created: TypeError", id="takes no arguments"),
        pytest.param("def adapter(id, config): return object()", "an adapter's id must be one", id="no adapter made"),
        pytest.param(MINIMAL.replace("= id,", "= 'y',"), "its id is y", id="another id"),
        pytest.param(f"{MINIMAL}    config_model = dict\n", "its config_model is not a pydantic model", id="model"),
    ],
)
def test_a_plugin_that_is_no_adapter_is_refused(code: str, problem: str, plugin: Path, data_dir: Path) -> None:
    plugin.write_text(code)
    assert problem in refusal(entry(plugin, config={"token": CANARY}), data_dir)


def test_a_path_that_leads_nowhere_is_refused(plugin: Path, data_dir: Path) -> None:
    os.mkfifo(data_dir / "pipe", 0o600)
    loop = data_dir / "loop"
    loop.symlink_to(loop)
    problems = {
        "gone.py": "No such file",
        "plugins": "is not a file",
        "pipe": "is not a file",
        "a\0b": "cannot read the plugin",
        "loop": "cannot read the plugin",
    }
    for path, problem in problems.items():
        assert problem in refusal(entry(path), data_dir)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666], ids=oct)
def test_a_plugin_that_others_can_write_is_not_run(mode: int, plugin: Path, data_dir: Path) -> None:
    plugin.chmod(mode)
    assert f"others can write to {plugin}; run 'chmod go-w {plugin}'" in refusal(entry(plugin), data_dir)


def test_a_plugin_in_a_directory_that_others_can_write_is_not_run(plugin: Path, data_dir: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.py"
    link.symlink_to(plugin)
    plugin.parent.chmod(0o777)
    for path in (plugin, link):
        assert f"the directory {plugin.parent}; run 'chmod go-w {plugin.parent}'" in refusal(entry(path), data_dir)
    plugin.parent.chmod(0o1777)  # as /tmp: others cannot replace what is ours
    prepare(entry(plugin, config={"diary": "d"}), data_dir, SecretRedactor())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_plugin_of_another_user_is_not_run(plugin: Path, data_dir: Path) -> None:
    os.chown(plugin, 12345, -1)
    assert "belongs to uid 12345, not to you or to root" in refusal(entry(plugin), data_dir)


# Configs


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        pytest.param({}, "config.diary: Field required", id="missing"),
        pytest.param(
            {"diary": "d", "pasword": CANARY}, "config: unknown key 'pasword', did you mean 'password'?", id="unknown"
        ),
        pytest.param({"diary": "d", "pages": CANARY}, "config.pages: Input should be a valid integer", id="type"),
        pytest.param(
            {"diary": "d", "password": CANARY * 4},
            "config.password is not valid: String should have at most 40",
            id="too long",
        ),
        pytest.param(
            {"diary": "d", "password": f"weak{CANARY}"}, "config.password is not valid: *** is too weak", id="quoted"
        ),
        pytest.param({"diary": 1, "pages": "a", "note": 2, "more": 3}, "; and 1 more", id="many"),
        pytest.param(
            {"diary": "d", "password": CANARY, "note": "unmakeable"},
            "it cannot be created: ValueError: *** opens nothing",
            id="quoted by the adapter",
        ),
        pytest.param(
            {"diary": "d", "password": CANARY, "note": "exits"},
            "it cannot be created: SystemExit: *** opens nothing",
            id="the adapter exits",
        ),
    ],
)
def test_a_bad_config_is_refused_in_one_line_without_its_values(
    config: dict[str, Any], problem: str, plugin: Path, data_dir: Path
) -> None:
    assert problem in refusal(entry(plugin, config=config), data_dir)


@pytest.mark.parametrize(
    ("type", "config"),
    [
        pytest.param("webhook", {"outbound": {**OUTBOUND}}, id="missing"),
        pytest.param("webhook", {"outbound": {**OUTBOUND, "secret": "env:NO_SUCH_SECRET"}}, id="no variable"),
        pytest.param("webhook", {"outbound": {**OUTBOUND, "secret": "file:nowhere"}}, id="no file"),
        pytest.param("webhook", {"outbound": {**OUTBOUND, "secret": "short"}}, id="too short"),
        pytest.param("webhook", {"inbound": {**INBOUND, "secret": "x" * 32, "previousSecret": "x" * 32}}, id="twice"),
        pytest.param("telegram", {"token": 1}, id="a number"),
    ],
)
def test_what_is_wrong_with_a_secret_is_whole_in_the_log(type: str, config: dict[str, Any], data_dir: Path) -> None:
    problem = refusal(Entry("x", type=type, config=config), data_dir)
    assert "ecret" in problem or "token" in problem
    assert redact_text(problem) == problem


@pytest.mark.parametrize(
    ("text", "secret", "shown"),
    [
        pytest.param("GET https://x/bot1:abc/me failed", "1:abcd", "GET https://x/bot1:abc/me failed", id="not in it"),
        pytest.param("GET https://x/bot12:abcd/me failed", "12:abcd", "GET https://x/bot***/me failed", id="in it"),
        pytest.param("bad key 'a\\nbcdef'", "a\nbcdef", "bad key '***'", id="as a repr"),
        pytest.param("bad key a bcdef", "a\n bcdef", "bad key ***", id="in one line"),
        pytest.param("the poll failed", "poll", "the poll failed", id="too short to be one"),
        pytest.param(
            "Bad [type=int, input_value='SECRET-C...NARY', input_type=str]", "SECRET-CA-CA-CANARY", "Bad", id="pydantic"
        ),
    ],
)
def test_texts_of_the_config_are_blotted_out(text: str, secret: str, shown: str) -> None:
    assert redact_values(text, {"deep": [{"token": secret}]}) == shown
