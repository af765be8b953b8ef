"""The base of every JSON shape: snake_case in Python, camelCase on disk and on the wire."""

from __future__ import annotations

from functools import cache, partial
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from relay_core.errors import InvalidSubject
from relay_core.messages.subjects import validate_subject


class WireModel(BaseModel):
    """An immutable value with camelCase JSON names; unknown keys are ignored."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        frozen=True,
        extra="ignore",
    )

    def to_wire(self) -> dict[str, Any]:
        """Return plain JSON data with camelCase keys, leaving out empty parts."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def _subject(text: str, *, allow_wildcards: bool = False) -> str:
    try:
        validate_subject(text, allow_wildcards=allow_wildcards)
    except InvalidSubject as error:
        raise ValueError(error.message) from error  # pydantic collects only ValueErrors
    return text


Subject = Annotated[str, AfterValidator(_subject)]
"""A concrete subject."""
Pattern = Annotated[str, AfterValidator(partial(_subject, allow_wildcards=True))]
"""A subject, or a pattern over subjects."""


def first_problem(error: ValidationError) -> tuple[str, str]:
    """Return where the first problem of a model lies, such as ``budget.ttl``, and what it is."""
    first = error.errors(include_url=False, include_input=False)[0]
    return ".".join(str(part) for part in first["loc"]), first["msg"].removeprefix("Value error, ")


M = TypeVar("M", bound=BaseModel)


def trusted(model: type[M], values: dict[str, Any]) -> M:
    """Return a model over values that are valid already, every field given.

    Filling pydantic's four slots takes 1 µs; validating again takes 3 to 6, model_construct 5.
    """
    made = model.__new__(model)
    _set(made, "__dict__", values)
    _set(made, "__pydantic_fields_set__", _fields(model))
    _set(made, "__pydantic_extra__", None)
    _set(made, "__pydantic_private__", None)
    return made


_set = object.__setattr__


@cache
def _fields(model: type[BaseModel]) -> set[str]:
    return set(model.model_fields)  # shared: trusted models are frozen and never change it
