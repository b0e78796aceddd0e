"""Small JSON files that are either the old ones or the new ones, never half written."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from stack.errors import StackError, disk_errors


def load(path: Path) -> dict[str, Any]:
    """Return the object in `path`, empty without such a file; StackError when it is not a JSON object."""
    with disk_errors(path):
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return {}
        except UnicodeDecodeError as error:
            raise StackError(f"{path} is not UTF-8 text: mend it or move it away") from error
    try:
        value = json.loads(text)
    except ValueError as error:
        raise StackError(f"{path} is not JSON ({error}): mend it or move it away") from error
    if not isinstance(value, dict):
        raise StackError(f"{path} does not hold a JSON object: mend it or move it away")
    return value


def save(path: Path, value: dict[str, Any], mode: int = 0o644) -> None:
    """Replace `path` durably by `value`; the file carries `mode` from its first byte on."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                os.fchmod(file.fileno(), mode)
                json.dump(value, file, indent=2, sort_keys=True)
                file.write("\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(fresh, path)
        finally:
            fresh.unlink(missing_ok=True)
