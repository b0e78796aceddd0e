"""Settings come from the environment into frozen dataclasses; a process with a wrong one does not start."""

import dataclasses
import os
import sys
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")
OURS = "TEAMLORE_"


class ConfigError(Exception):
    """The environment is not usable; each line of the text names one variable and what is wrong with it."""


def setting(
    name: str,
    default: Any = dataclasses.MISSING,
    choices: tuple[str, ...] = (),
    *,
    minimum: float | None = None,
    maximum: float | None = None,
) -> Any:
    """Declares a field that is read from the environment variable `name`; without a default it must be set.

    A number needs `minimum` and `maximum`, both of which it may be.
    """
    metadata = {"env": name, "choices": choices, "range": (minimum, maximum)}
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def load(cls: type[T], environ: Mapping[str, str] | None = None) -> T:
    """Reads `cls` (a frozen dataclass of `setting` fields of type str, int, float or bool) from the environment.

    Raises ConfigError that names every missing, malformed and unknown variable at once.
    """
    env = os.environ if environ is None else environ
    hints = typing.get_type_hints(cls)
    problems: list[str] = []
    values: dict[str, Any] = {}
    known = set()
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]  # T is a dataclass by contract
        name = field.metadata["env"]
        known.add(name)
        raw = env.get(name, "")
        if raw == "":
            if field.default is dataclasses.MISSING:
                problems.append(f"{name} is not set")
            continue
        kind = _kind(hints[field.name])
        try:
            values[field.name] = _parse(raw, kind)
        except ValueError:
            problems.append(f"{name} must be {_article(kind)}")
            continue
        if kind in (int, float):
            least, most = field.metadata["range"]
            # Not a number is in no range.
            if not least <= values[field.name] <= most:
                problems.append(f"{name} must be {_article(kind)} from {least} to {most}")
        choices = field.metadata["choices"]
        if choices and raw not in choices:
            problems.append(f"{name} must be one of {', '.join(choices)}")
    unknown = sorted(name for name in env if name.startswith(OURS) and name not in known)
    problems += [f"{name} is not a setting of this process" for name in unknown]
    if problems:
        raise ConfigError("\n".join(problems))
    return cls(**values)


def load_or_exit(cls: type[T]) -> T:
    """As `load`, but ends the process with the problems on standard error and exit code 2."""
    try:
        return load(cls)
    except ConfigError as error:
        print(f"wrong configuration:\n{error}", file=sys.stderr)
        sys.exit(2)


def _kind(hint: Any) -> Any:
    """The type of a field that may also be None."""
    if isinstance(hint, types.UnionType):
        return next(arg for arg in typing.get_args(hint) if arg is not type(None))
    return hint


def _parse(raw: str, kind: Any) -> Any:
    if kind is bool:
        if raw.lower() not in ("true", "false"):
            raise ValueError(raw)
        return raw.lower() == "true"
    return kind(raw)


def _article(kind: Any) -> str:
    return {int: "a whole number", float: "a number", bool: "true or false"}.get(kind, "text")
