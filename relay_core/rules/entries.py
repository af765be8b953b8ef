"""The entries of an operator's file that decides who may do what: access-rules.json and tokens.json.

A file is accepted as a whole or not at all, and read strictly: guessing what a priority of "5" means can widen access.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from relay_core.config import explain_unknown
from relay_core.errors import InvalidSubject
from relay_core.messages.base import first_problem

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")


def parse_entries(data: bytes, noun: str, keys: Sequence[str], parse: Callable[[dict[str, Any]], T]) -> list[T]:
    """Return the parsed entries of a JSON array of objects with these keys.

    Raises:
        ValueError: if it is not such an array, or `parse` refuses an entry; the text numbers the entry.
    """
    try:
        entries = orjson.loads(data)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(entries, list):
        raise ValueError(f"must be one JSON array of {noun}s")
    parsed = []
    for number, entry in enumerate(entries, start=1):
        if not isinstance(entry, dict):
            raise ValueError(f"{noun} {number} is not an object")
        try:
            for key in entry:
                if key not in keys:
                    raise ValueError(explain_unknown(key, list(keys)))
            parsed.append(parse(entry))
        except ValidationError as error:
            raise ValueError(f"{noun} {number}: {': '.join(first_problem(error))}") from error
        except (ValueError, InvalidSubject) as error:
            raise ValueError(f"{noun} {number}: {error}") from error
    return parsed


def validate_strictly(model: type[M], entry: dict[str, Any]) -> M:
    """Return an entry as a model, converting nothing."""
    return model.model_validate(entry, strict=True, by_alias=True, by_name=False)
