"""Authorising: what the access option of a method asks of a caller, read from the request that it sent."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from teamlore.common.v1 import access_pb2

from kit import validation
from kit.access import Caller
from kit.access_state import AccessState
from kit.errors import Refusal, field_invalid

_WORDS = {number: name.removeprefix("PERMISSION_").lower() for name, number in access_pb2.Permission.items()}
BankOf = Callable[[str], Awaitable[str | None]]


def access_of(method: MethodDescriptor) -> access_pb2.Access:
    """The access option of a method."""
    return method.GetOptions().Extensions[access_pb2.access]


@dataclass
class Call:
    """How far a call has come: enough to say of a refusal who was refused what."""

    method: str
    caller: Caller | None = None
    bank: str = ""
    deciding: bool = False


async def authorise(
    access: access_pb2.Access,
    request: Message,
    caller: Caller,
    call: Call,
    state: AccessState,
    resources: Mapping[str, BankOf],
) -> None:
    """Raises Refusal unless the caller may call the method with this request; `call` learns the bank it is about.

    FIELD_INVALID where what decides about a caller who would be refused breaks its own rule.
    """
    await _rule(access, request, caller, call, state, resources)
    if access.person and not caller.person_present:
        raise Refusal("PERSON_REQUIRED", "sign in with `teamlore login` and call from that session")


async def _rule(
    access: access_pb2.Access,
    request: Message,
    caller: Caller,
    call: Call,
    state: AccessState,
    resources: Mapping[str, BankOf],
) -> None:
    rule = access.WhichOneof("rule")
    word = _WORDS[access.permission]
    if (rule == "internal" and caller.internal) or rule == "self":
        return
    if rule in ("bank", "banks"):
        name = str(getattr(access, rule))
        try:
            for bank in _named(request, name):
                call.bank = bank
                await state.require(caller, word, bank)
            return
        except Refusal:
            # Only a caller who may nothing learns first that the bank's id is malformed.
            _refuse_field(request, name)
            raise
    if rule == "resource":
        _refuse_field(request, access.resource)
        found = await resources[access.resource](str(getattr(request, access.resource)))
        call.bank = found or ""
        facts = await state.facts(caller, found) if found is not None else None
        words = (word, *(_WORDS[number] for number in access.also))
        if found is not None and (
            caller.internal or any(caller.may(each, found, facts) for each in words)
        ):
            return
        raise Refusal("NOT_FOUND", "there is no such object, or you may not see it")
    if rule == "pattern":
        word = "admin"
        values = _named(request, access.pattern)
        if values and all(caller.covers(value) for value in values):
            return
        if not values and caller.covers("*"):
            return
        _refuse_field(request, access.pattern)
    elif rule == "deployment" and caller.covers("*", word):
        return
    elif rule == "internal":
        raise Refusal("PERMISSION_DENIED", "only another service of this deployment may call this")
    raise Refusal("PERMISSION_DENIED", f"you lack the permission {word}", metadata={"permission": word})


def require_same(access: access_pb2.Access, request: Message, first: Message) -> None:
    """Raises Refusal FIELD_INVALID where a later request of a stream names another object than was authorised."""
    rule = str(access.WhichOneof("rule"))
    if rule in ("bank", "banks", "resource", "pattern"):
        name = str(getattr(access, rule))
        named = [value for value in _values(request, name.split(".")) if value]
        if named and named != _values(first, name.split(".")):
            raise field_invalid(name, "a stream is about what its first message names")


def _refuse_field(request: Message, name: str) -> None:
    """Raises Refusal FIELD_INVALID where the field that says what to authorise breaks its rule."""
    validation.refuse(validation.violations_at(request, name))


def _named(request: Message, name: str) -> list[str]:
    """The values that say what to authorise. Raises Refusal FIELD_INVALID for more, or longer ones, than may be."""
    # A caller who may nothing must not make us look at each of a million.
    validation.refuse(validation.excess_at(request, name))
    return _values(request, name.split("."))


def _values(message: Any, path: list[str]) -> list[str]:
    """All values at a dotted path through messages and repeated fields."""
    if not path:
        return [str(message)]
    value = getattr(message, path[0])
    repeated = message.DESCRIPTOR.fields_by_name[path[0]].is_repeated
    return [text for item in (value if repeated else [value]) for text in _values(item, path[1:])]
