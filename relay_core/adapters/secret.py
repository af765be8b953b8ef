"""Secrets in configurations: written as references, resolved when they are read, and never shown.

1. ``env:NAME`` is an environment variable, ``file:PATH`` the text of a file (without the final line break) that only
   its owner can read. Anything else is the secret itself: it works, with a warning.
2. References are resolved during validation, so an unresolvable one is an error in the configuration, found before a
   running adapter is touched. Relative paths start at ``directory`` in the validation context. Each secret is added to
   the context's list ``secrets``, so that the caller can redact them even if the model is invalid.
3. `str`, `repr`, model dumps and error texts do not contain the value: only `reveal` returns it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, GetCoreSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, core_schema

from relay_core.storage.trusted_file import UntrustedFile, check_path

_OTHERS = 0o077
_LONGEST = 64 * 1024


class Secret:
    """A value that only `reveal` returns."""

    __slots__ = ("_value", "source")

    def __init__(self, value: str, source: str = "inline") -> None:
        self._value = value
        self.source = source
        """``env:NAME``, ``file:PATH``, or ``inline``."""

    @property
    def inline(self) -> bool:
        """Return True if the configuration itself contains the value."""
        return self.source == "inline"

    def reveal(self) -> str:
        """Return the value."""
        return self._value

    def __repr__(self) -> str:
        return f"Secret({self.source})"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._value == other._value

    def __hash__(self) -> int:
        return hash(self._value)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(
            _validate, serialization=core_schema.plain_serializer_function_ser_schema(lambda secret: secret.source)
        )


def resolve_secret(reference: str, *, directory: Path | None = None) -> Secret:
    """Return the secret of a reference; blocks on a file.

    Raises:
        ValueError: if it cannot be resolved; the text does not quote an inline value.
    """
    kind, colon, name = reference.partition(":")
    if colon and kind == "env":
        value = os.environ.get(name)
        if not value:
            raise ValueError(f"the environment has no {name} (set it where the supervisor is started)")
        return Secret(value, reference)
    if colon and kind == "file":
        return Secret(_read(Path(directory or "", Path(name).expanduser())), reference)
    if not reference:
        raise ValueError("a secret must not be empty")
    return Secret(reference)


def find_secrets(value: Any) -> Iterator[tuple[str, Secret]]:
    """Yield the secrets within a model with their location, such as ``agents.backend.env.API_KEY``."""
    if isinstance(value, Secret):
        yield "", value
        return
    parts: Iterator[tuple[Any, Any]]
    if isinstance(value, BaseModel):
        fields = type(value).model_fields
        parts = ((fields[name].alias or name, getattr(value, name)) for name in fields)
    elif isinstance(value, Mapping):
        parts = iter(value.items())
    elif isinstance(value, list | tuple):
        parts = iter(enumerate(value))
    else:
        return
    for name, part in parts:
        for below, secret in find_secrets(part):
            yield f"{name}.{below}".rstrip("."), secret


def declares_secrets(model: type[BaseModel]) -> bool:
    """Return True if a model has fields of type `Secret`."""
    seen: set[Any] = set()

    def mentions(annotation: Any) -> bool:
        if annotation is Secret:
            return True
        if annotation in seen:
            return False
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            seen.add(annotation)
            return any(mentions(field.annotation) for field in annotation.model_fields.values())
        return any(mentions(part) for part in get_args(annotation))

    return mentions(model)


def _validate(value: Any, info: ValidationInfo) -> Secret:
    if isinstance(value, Secret):
        return value
    if not isinstance(value, str):
        raise ValueError("must be text: env:NAME, file:PATH, or the secret itself")
    context = info.context or {}
    secret = resolve_secret(value, directory=context.get("directory"))
    context.get("secrets", []).append(secret)
    return secret


def _read(path: Path) -> str:
    try:
        real = check_path(path)
        # A pipe would never open.
        descriptor = os.open(real, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except UntrustedFile as error:
        raise ValueError(f"the secret in {path} is not used: {error}") from None
    except OSError as error:
        raise ValueError(f"cannot read the secret in {path}: {error.strerror}") from None
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise ValueError(f"{path} is not a file")
        if about.st_uid not in (0, os.geteuid()):
            raise ValueError(f"{path} belongs to uid {about.st_uid}, not to you")
        if about.st_mode & _OTHERS:
            raise ValueError(f"others can read {path}: run 'chmod 600 {path}'")
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(_LONGEST + 1)
    finally:
        os.close(descriptor)
    try:
        value = data.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text") from None
    if not value or len(data) > _LONGEST:
        raise ValueError(f"{path} must hold one secret, and has {len(data)} bytes")
    return value
