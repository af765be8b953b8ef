"""Read the texts below the fields of models from the source.

pydantic can do so (`use_attribute_docstrings`), but reads the source of every model at import: a fifth of a second for
each run of a command line. Here it is read when documentation is generated.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any


def field_texts(model: type[Any]) -> dict[str, str]:
    """Return the text below each field of a model, inherited ones included."""
    texts: dict[str, str] = {}
    for owner in reversed(model.__mro__):
        if owner.__module__.startswith("relay_"):
            texts |= _texts_of_module(owner.__module__).get(owner.__name__, {})
    return texts


@cache
def _texts_of_module(module: str) -> dict[str, dict[str, str]]:
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return {node.name: dict(_texts_of_class(node)) for node in classes}


def _texts_of_class(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for attribute, text_below in pairwise(node.body):
        match attribute, text_below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield name, inspect.cleandoc(text)
