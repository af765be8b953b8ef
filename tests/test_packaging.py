"""What `python -m build` makes is complete, and has nothing that is not Relay."""

from __future__ import annotations

import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest

from relay_core import __version__
from tests.kit import ROOT
from tests.kit.installed import PACKAGES, Built, build


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(tmp_path_factory.mktemp("dist"))


def sources() -> set[str]:
    """Return every file of the packages, Python or not."""
    found = (path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file())
    return {path.as_posix() for path in found if "__pycache__" not in path.parts}


def test_the_wheel_has_every_file_of_the_packages_and_nothing_else(built: Built) -> None:
    about = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")
    with ZipFile(built.wheel) as wheel:
        assert set(wheel.namelist()) == sources() | {f"relay_bus-{__version__}.dist-info/{name}" for name in about}


def test_the_sdist_has_what_the_wheel_is_built_from_and_nothing_else(built: Built) -> None:
    about = {".gitignore", "CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml"}
    with tarfile.open(built.sdist) as sdist:
        assert {name.partition("/")[2] for name in sdist.getnames()} == sources() | about


def test_the_sdist_and_the_checkout_make_the_same_wheel(built: Built, tmp_path: Path) -> None:
    assert build(tmp_path, "--wheel", "--sdist").wheel.read_bytes() == built.wheel.read_bytes()
