"""What admins type and read: lists, grants, ends of time."""

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from teamlore_client._memory import FieldInvalid
from teamlore_client._show import minute

_SPAN = re.compile(r"([1-9][0-9]{0,5})([smhdw])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def split(given: Iterable[str] | None) -> list[str]:
    """Return the words of an option that may be given more than once, or once with commas; each once."""
    words = (word.strip() for text in given or () for word in text.split(","))
    return list(dict.fromkeys(word for word in words if word))


def span(given: str, field: str) -> timedelta:
    """Read `90d`, `12h`, `30m`, `45s` or `2w`. Raises FieldInvalid."""
    if (found := _SPAN.fullmatch(given.strip())) is None:
        raise FieldInvalid(field, "must be a number and a unit, such as 90d, 12h, 30m, 45s or 2w")
    return timedelta(seconds=int(found[1]) * _UNITS[found[2]])


def until(given: str, field: str) -> datetime:
    """Read when something ends: a span from now, or a date or time in ISO 8601. Raises FieldInvalid."""
    try:
        if _SPAN.fullmatch(given.strip()):
            return datetime.now(UTC) + span(given, field)
        return datetime.fromisoformat(given.strip()).astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        raise FieldInvalid(field, "must be a span such as 90d, or a date or a time in ISO 8601") from None


def moment(text: Any, absent: str = "-") -> str:
    """Show a moment of an answer in local time, to the minute."""
    return minute(datetime.fromisoformat(text)) if text else absent


def grants(value: Iterable[dict[str, Any]]) -> str:
    """Show a token's grants: `project:* read,write`."""
    return "; ".join(f"{each['pattern']} {','.join(each['permissions'])}" for each in value) or "-"


def listed(value: Iterable[str]) -> str:
    """Show a list of words."""
    return ", ".join(value) or "-"


def standing_of(token: dict[str, Any]) -> str:
    """Say how a token stands: revoked, ended or active, and what it is besides."""
    if token.get("revoked_at"):
        return f"revoked {moment(token['revoked_at'])}"
    if token.get("expires_at") and datetime.fromisoformat(token["expires_at"]) <= datetime.now(UTC):
        return "ended"
    return "session" if token.get("session") else "personal key" if token.get("personal") else "active"
