"""From an entry of adapters.json to an adapter.

1. A ``type`` is built in, or an entry point of the group ``relay.adapters`` in an installed package. A ``path`` is a
   Python file, absolute or relative to the data directory, that defines a class or function called ``adapter``.
   Either is called as ``adapter(id, config)``.
2. The pydantic model in its ``config_model`` validates the config, and the adapter gets the model. Without one it gets
   the config as it is. `Secret` fields are resolved by the validation.
3. A file is executed again for every adapter made from it, so a reload sees its changes. An installed package is
   imported once per process.
4. A file is code that runs as the supervisor's user: it must belong to this user or to root, and neither it nor a
   directory above it may be writable by others (except sticky ones like /tmp) or be another user's; the same holds for
   links on the path. The checked file is the one that runs.
5. Every failure is a ConfigError of one line, without secrets. A model with `Secret` fields declares which values are
   secret; of any other config every text may be one, and is redacted even where a plugin quotes it.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel, ValidationError

from relay_core.adapters.secret import Secret, declares_secrets, find_secrets
from relay_core.adapters.validation import read_shape
from relay_core.config import explain_unknown
from relay_core.errors import ConfigError
from relay_core.storage.trusted_file import UntrustedFile, check_path
from relay_supervisor.adapters.file import Entry
from relay_supervisor.observability.redaction import is_secret_name
from relay_supervisor.observability.secrets import REDACTED, SHORTEST_SECRET, SecretRedactor

if TYPE_CHECKING:
    from relay_core.adapters.interface import Adapter

AdapterType = Callable[[str, Any], "Adapter"]


class Prepared(NamedTuple):
    """A valid entry, ready to become an adapter."""

    make: Callable[[], Adapter]
    redact: Callable[[str], str]
    """Removes its secrets from a text."""
    warning: str | None
    """Something that an operator should change."""


GROUP = "relay.adapters"
BUILT_IN: dict[str, str] = {
    "claude-code": "relay_supervisor.adapters.claude_code.adapter:ClaudeCodeAdapter",
    "nats": "relay_supervisor.adapters.nats.adapter:NatsAdapter",
    "telegram": "relay_supervisor.adapters.telegram.adapter:TelegramAdapter",
    "webhook": "relay_supervisor.adapters.webhook.adapter:WebhookAdapter",
}
"""Name to ``module:Class``."""

_FREELY_NAMED = re.compile(r"\b(?:env|headers)\.[^.]+$")
_SHOWN_ERRORS = 3
# The end of pydantic's messages: it shortens a long value in the middle, so the value cannot be found and redacted.
_QUOTED_INPUT = re.compile(r" ?\[type=\w+, input_value=.*?, input_type=\w+\]", re.DOTALL)


def prepare(entry: Entry, directory: Path, redactor: SecretRedactor) -> Prepared:
    """Load an entry's type and check its config; blocks, imports and reads.

    Raises:
        ConfigError: if the type or the config cannot be used.
    """
    if entry.problem is not None:
        raise ConfigError(entry.problem)
    redact: Callable[[str], str] = lambda text: redact_values(text, entry.config)  # noqa: E731 - no repr shows it
    try:
        if entry.path is not None:
            make = load_file(directory / entry.path, module_name=f"relay_plugin_{entry.id}")
        else:
            make = find_type(entry.type or "")
        model = _config_model(make)
        if model is not None and declares_secrets(model):
            redact = redactor.redact
        config = check_config(model, entry.config, directory, redactor)
    except ConfigError as error:
        raise ConfigError(redact(error.message), key=error.key) from None
    return Prepared(lambda: _make(make, entry, config, redact), redact, _warn(config))


def find_type(name: str) -> AdapterType:
    """Return the adapter type of a name.

    Raises:
        ConfigError: if there is none, or it cannot be imported.
    """
    from importlib.metadata import EntryPoint, entry_points

    installed = {point.name: point for point in entry_points(group=GROUP)}
    if name in BUILT_IN:
        point = EntryPoint(name, BUILT_IN[name], GROUP)
    elif name in installed:
        point = installed[name]
    else:
        unknown = explain_unknown(name, sorted({*BUILT_IN, *installed}))
        unknown = unknown.replace("unknown key", "unknown adapter type").replace("known keys", "there are")
        raise ConfigError(unknown, key="type")
    try:
        found = point.load()
    except (Exception, SystemExit) as error:
        raise ConfigError(f"adapter type {name} cannot be imported: {one_line(error)}", key="type") from None
    return _check_callable(found, f"adapter type {name}: {point.value}")


def load_file(path: Path, *, module_name: str = "relay_plugin") -> AdapterType:
    """Execute a Python file and return its ``adapter``.

    Raises:
        ConfigError: if the file is missing, not safe, fails, or defines no adapter.
    """
    try:
        path = Path(check_path(path))
        code = _read_safely(path)
    except UntrustedFile as error:
        raise ConfigError(f"the plugin {path} is not run: {error}", key="path") from None
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, an impossible name
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"cannot read the plugin {path}: {why}", key="path") from None
    module = ModuleType(module_name)
    module.__file__ = str(path)
    # Registered while it runs and afterwards: pydantic and dataclasses look up annotations there.
    before = sys.modules.get(module_name)
    sys.modules[module_name] = module
    try:
        exec(compile(code, str(path), "exec", dont_inherit=True), module.__dict__)
        return _check_callable(getattr(module, "adapter", None), f"the plugin {path}: adapter")
    except BaseException as error:
        sys.modules.pop(module_name, None)
        if before is not None:
            sys.modules[module_name] = before
        if isinstance(error, Exception | SystemExit) and not isinstance(error, ConfigError):
            raise ConfigError(f"the plugin {path} cannot be run: {one_line(error)}", key="path") from None
        raise


def check_config(
    model: type[BaseModel] | None, config: dict[str, Any], directory: Path, redactor: SecretRedactor
) -> Any:
    """Return the config as the adapter gets it; its secrets are known to the redactor then, even if it is refused.

    Raises:
        ConfigError: if the model refuses it; the message names keys but no values.
    """
    if model is None:
        return config
    secrets: list[Secret] = []
    try:
        return model.model_validate(config, context={"directory": directory, "secrets": secrets})
    except ValidationError as error:
        raise ConfigError(_explain(error, model), key="config") from None
    except (Exception, SystemExit) as error:
        raise ConfigError(f"its config_model failed: {one_line(error)}", key="config") from None
    finally:
        redactor.add(secret.reveal() for secret in secrets)


def _config_model(make: AdapterType) -> type[BaseModel] | None:
    model = getattr(make, "config_model", None)
    if model is None:
        return None
    if not isinstance(model, type) or not issubclass(model, BaseModel):
        raise ConfigError("its config_model is not a pydantic model", key="config")
    return model


def _warn(config: Any) -> str | None:
    found = [(where, secret) for where, secret in find_secrets(config) if secret.inline]
    # Variables and headers are often not secret; only their names can tell.
    inline = [f"config.{where}" for where, _ in found if not _FREELY_NAMED.search(where) or is_secret_name(where)]
    if not inline:
        return None
    holds = "holds a secret itself" if len(inline) == 1 else "hold secrets themselves"
    return f"{', '.join(inline)} {holds}: write env:NAME or file:PATH there instead"


def redact_values(text: str, config: Mapping[str, Any]) -> str:
    """Return a text without the texts that a config holds, since each except the shortest may be a secret."""
    text = _QUOTED_INPUT.sub("", text)
    for secret in sorted(_texts(config), key=len, reverse=True):
        if len(secret) >= SHORTEST_SECRET:
            for written in (secret, repr(secret)[1:-1], " ".join(secret.split())):
                text = text.replace(written, REDACTED)
    return text


def _make(make: AdapterType, entry: Entry, config: Any, redact: Callable[[str], str]) -> Adapter:
    try:
        adapter = make(entry.id, config)
        shape = read_shape(adapter)
    except ConfigError as error:
        raise ConfigError(redact(error.message), key=error.key) from None
    except (Exception, SystemExit) as error:
        raise ConfigError(redact(f"it cannot be created: {one_line(error)}")) from None
    if shape.id != entry.id:
        raise ConfigError(f"its id is {shape.id}: an adapter must use the id that it is given", key="id")
    return adapter


def _read_safely(path: Path) -> bytes:
    # Opened without waiting: a pipe would never open.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise ConfigError(f"the plugin {path} is not a file", key="path")
        if not os.path.samestat(found, os.stat(check_path(path))):
            raise ConfigError(f"the plugin {path} was replaced while it was read", key="path")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)


def _check_callable(found: Any, name: str) -> AdapterType:
    if not callable(found):
        raise ConfigError(f"{name} must be a class or a function", key="type")
    make: AdapterType = found
    return make


def _explain(error: ValidationError, model: type[BaseModel]) -> str:
    known = [field.alias or name for name, field in model.model_fields.items()]
    problems = []
    # Neither the input nor the context, which has what a validator raised: values are secrets.
    for detail in error.errors(include_url=False, include_context=False, include_input=False):
        where = [str(part) for part in detail["loc"]]
        if detail["type"] == "extra_forbidden":
            key = where.pop()
            problem = explain_unknown(key, known) if not where else f"unknown key {key!r}"
        else:
            problem = detail["msg"].removeprefix("Value error, ")
        # After "secret:" the log's redaction takes the next word for the secret.
        key = ".".join(["config", *where]) + (" is not valid" if where and is_secret_name(where[-1]) else "")
        problems.append(f"{key}: {' '.join(problem.split())}")
    more = len(problems) - _SHOWN_ERRORS
    return "; ".join(problems[:_SHOWN_ERRORS]) + (f"; and {more} more" if more > 0 else "")


def one_line(error: BaseException) -> str:
    """Return an error's type and message on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
