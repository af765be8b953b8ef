"""The tree of errors is an interface: codes and fields are pinned here."""

from __future__ import annotations

import pytest

from relay_core import errors
from relay_core.errors import RelayError

TREE: dict[str, tuple[str, tuple[str, ...]]] = {
    "RelayError": ("relay_error", ()),
    "InvalidSubject": ("invalid_subject", ("subject",)),
    "InvalidPayload": ("invalid_payload", ("size", "limit")),
    "AccessDenied": ("access_denied", ("sender", "subject", "rule", "message_id")),
    "NotFound": ("not_found", ("what",)),
    "StorageError": ("storage_error", ("path", "retryable", "pid")),
    "ConfigError": ("config_error", ("path", "key")),
    "ProtocolError": ("protocol_error", ()),
    "SupervisorUnavailable": ("unavailable", ("socket",)),
    "Closed": ("closed", ()),
}


def classes() -> dict[str, type[RelayError]]:
    return {
        name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, RelayError)
    }


def test_the_tree_is_pinned() -> None:
    assert {name: (kind.default_code, kind.field_names()) for name, kind in classes().items()} == TREE


def test_the_tree_is_flat() -> None:
    assert {kind.__base__ for name, kind in classes().items() if name != "RelayError"} == {RelayError}


@pytest.mark.parametrize("name", [name for name in TREE if name != "RelayError"])
def test_the_module_docstring_draws_every_class(name: str) -> None:
    code, fields = TREE[name]
    [line] = [line for line in (errors.__doc__ or "").splitlines() if f"── {name} " in f"{line} "]
    drawn = line.replace(",", "").split()
    assert drawn[drawn.index(name) + 1 :] == [code, *fields]


@pytest.mark.parametrize("name", TREE)
def test_an_error_has_a_message_a_code_and_its_fields(name: str) -> None:
    kind = classes()[name]
    values = {field: f"the {field}" for field in kind.field_names()}
    error = kind("what to do", **values)
    assert (str(error), error.message, error.code) == ("what to do", "what to do", kind.default_code)
    assert error.data == values
    assert kind("x", code="narrower").code == "narrower"


def test_fields_that_say_nothing_are_left_out() -> None:
    assert errors.InvalidPayload("x", size=0).data == {"size": 0}
    assert errors.StorageError("x").data == {"retryable": False}
