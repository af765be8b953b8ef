"""A trie of subjects and patterns: matching does not cost more when there are more patterns.

A level holds its literal children and two wildcard pointers, ``*`` and ``>``; a value is stored where its pattern ends.

1. `match` takes a concrete subject and finds every stored pattern that `matches_pattern` accepts for it.
2. `select` takes a pattern and finds every stored *literal* subject that it matches, but no stored patterns.
3. Values of one pattern keep their order of insertion; removing the last one prunes the branch.
4. Nothing is validated here: callers pass subjects that `validate_subject` has accepted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class _Level(Generic[T]):
    __slots__ = ("literals", "rest", "star", "values")

    def __init__(self) -> None:
        self.literals: dict[str, _Level[T]] = {}
        self.star: _Level[T] | None = None
        self.rest: _Level[T] | None = None
        self.values: list[T] = []

    def child(self, token: str) -> _Level[T] | None:
        if token == "*":
            return self.star
        if token == ">":
            return self.rest
        return self.literals.get(token)

    def grow(self, token: str) -> _Level[T]:
        level: _Level[T] = _Level()
        if token == "*":
            self.star = level
        elif token == ">":
            self.rest = level
        else:
            self.literals[token] = level
        return level

    def prune(self, token: str) -> None:
        if token == "*":
            self.star = None
        elif token == ">":
            self.rest = None
        else:
            del self.literals[token]
            if not self.literals:
                self.literals.clear()  # frees the table of a dict that was large

    def is_empty(self) -> bool:
        return not (self.values or self.literals or self.star or self.rest)

    def children(self) -> Iterator[tuple[str, _Level[T]]]:
        yield from self.literals.items()
        if self.star is not None:
            yield "*", self.star
        if self.rest is not None:
            yield ">", self.rest


class SubjectTrie(Generic[T]):
    """Values by subject or pattern."""

    __slots__ = ("_root", "_size")

    def __init__(self) -> None:
        self._root: _Level[T] = _Level()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[T]:
        return (value for _, value in self.items())

    def items(self) -> Iterator[tuple[str, T]]:
        """Yield every value with the subject or pattern it is stored under."""
        stack = [(token, level) for token, level in self._root.children()]
        while stack:
            pattern, level = stack.pop()
            for value in level.values:
                yield pattern, value
            stack.extend((f"{pattern}.{token}", child) for token, child in level.children())

    def add(self, pattern: str, value: T) -> None:
        """Store a value under a subject or pattern."""
        level = self._root
        for token in pattern.split("."):
            level = level.child(token) or level.grow(token)
        level.values.append(value)
        self._size += 1

    def remove(self, pattern: str, value: T) -> bool:
        """Remove the first such value of a pattern; return True if there was one."""
        tokens = pattern.split(".")
        path = [self._root]
        for token in tokens:
            child = path[-1].child(token)
            if child is None:
                return False
            path.append(child)
        try:
            path[-1].values.remove(value)
        except ValueError:
            return False
        self._size -= 1
        for token in reversed(tokens):
            if not path.pop().is_empty():
                break
            path[-1].prune(token)
        return True

    def match(self, subject: str) -> list[T]:
        """Return the values of every pattern that matches a concrete subject."""
        found: list[T] = []
        levels = [self._root]
        for token in subject.split("."):
            below: list[_Level[T]] = []
            for level in levels:
                if level.rest is not None:
                    found += level.rest.values
                if level.star is not None:
                    below.append(level.star)
                if (child := level.literals.get(token)) is not None:
                    below.append(child)
            if not below:
                return found
            levels = below
        for level in levels:
            found += level.values
        return found

    def select(self, pattern: str) -> list[T]:
        """Return the values of every literal subject that a pattern matches."""
        levels = [self._root]
        for token in pattern.split("."):
            if token == ">":
                levels = _literals_below(levels)
            elif token == "*":
                levels = [child for level in levels for child in level.literals.values()]
            else:
                levels = [child for level in levels if (child := level.literals.get(token)) is not None]
        return [value for level in levels for value in level.values]


def _literals_below(levels: list[_Level[T]]) -> list[_Level[T]]:
    found: list[_Level[T]] = []
    while levels:
        levels = [child for level in levels for child in level.literals.values()]
        found += levels
    return found
