"""The context of the call that is running: who, which method, and the name of its audit row."""

import contextlib
import uuid
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass(frozen=True)
class CallContext:
    """One call or one step of a background job, as its audit row will tell it."""

    name: str
    principal: str
    token_id: str
    call_id: uuid.UUID = field(default_factory=uuid.uuid4)


_current: ContextVar[CallContext | None] = ContextVar("teamlore_call", default=None)


def current() -> CallContext | None:
    """The context of the running call, or None outside of one."""
    return _current.get()


@contextlib.contextmanager
def calling(context: CallContext | None) -> Iterator[None]:
    """Runs a block as the call that `context` describes; None for a call that changes nothing."""
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)
