"""Judges a request by the rules in its proto, and by those that the proto language cannot say."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import protovalidate
from buf.validate import validate_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from kit.errors import Refusal, Violation

UNSAID = 1000
"""Characters or bytes of a string that has rules and no length among them, items of a list without a number."""
SEVERAL = 1000
"""Items up to which a message is told all its faults. A fault costs a hundred times what a good item does."""
LARGEST = 4 * 1024 * 1024
"""Bytes of one request, as the protos say."""
_VALUE = "google.protobuf.Value"


def violations_of(message: Message) -> list[Violation]:
    """What is wrong with a message, by field path; empty when nothing is. Never repeats the value."""
    return _judged(message, _Measure(message))


def violations_at(message: Message, name: str) -> list[Violation]:
    """What is wrong with one field, dotted through messages and lists; all else of the message is not looked at."""
    path = name.split(".")
    measure = _Measure(message, path)
    if measure.excess is not None:
        return [measure.excess]
    # The rest of a message that carries one field may well be missing.
    return [v for v in _judged(_only(message, path), measure) if _covers(v.field, name)]


def excess_at(message: Message, name: str) -> list[Violation]:
    """Where one field holds more, or longer, than its rules allow; stops at the first."""
    excess = _Measure(message, name.split(".")).excess
    return [] if excess is None else [excess]


def refuse(found: Sequence[Violation]) -> None:
    """Raises Refusal FIELD_INVALID that names what was found; nothing where that is nothing."""
    if found:
        first = found[0]
        raise Refusal(
            "FIELD_INVALID", f"{first.field or 'request'}: {first.description}", violations=found[:20]
        )


def check(message: Message) -> None:
    """Raises Refusal FIELD_INVALID that names every field that breaks its rule."""
    refuse(violations_of(message))


def check_size(message: Message, size: int) -> None:
    """Raises Refusal FIELD_INVALID that names the field which takes the most, for a message of more than LARGEST bytes."""
    if size > LARGEST:
        fields = [field.name for field, _ in message.ListFields()]
        most = max(fields, key=lambda name: _only(message, [name]).ByteSize(), default="")
        refuse([Violation(most, f"a request has at most {LARGEST} bytes, and this one has {size}: send less at once")])


@dataclass(frozen=True)
class _Limits:
    """How much a field may hold."""

    field: FieldDescriptor
    items: int
    """Of a list or a map."""
    text: validate_pb2.StringRules | None
    """Of the string, or of each one in a list."""
    bytes_: validate_pb2.BytesRules | None
    key: validate_pb2.StringRules | None
    is_map: bool
    nested: bool
    """Whether it holds messages that are judged along."""

    @property
    def free(self) -> bool:
        """Whether any value of it may pass: a number, or a text without rules."""
        return not (self.field.is_repeated or self.nested or self.text is not None or self.bytes_ is not None)

    @property
    def short(self) -> int:
        """Characters or bytes up to which a single string is short enough whatever its characters are."""
        if self.field.is_repeated or self.nested or (self.text is None and self.bytes_ is None):
            return 0
        limit, unit = _longest(self.text if self.text is not None else self.bytes_)
        return limit // 4 if self.text is not None and unit == "bytes" else limit


@dataclass(frozen=True)
class _Known:
    """What is asked of each message of a kind, so told once."""

    is_value: bool
    limits: dict[int, _Limits]
    """By field number, of the fields that have any."""
    short: dict[int, int]
    """By field number, of single strings and bytes."""


@cache
def _known_of(message: Descriptor) -> _Known:
    limits = {field.number: _limits(field) for field in message.fields}
    limits = {number: each for number, each in limits.items() if not each.free}
    return _Known(
        message.full_name == _VALUE, limits, {n: each.short for n, each in limits.items() if each.short}
    )


def _limits(field: FieldDescriptor) -> _Limits:
    rules = field.GetOptions().Extensions[validate_pb2.field]
    entry = field.message_type
    is_map = entry is not None and entry.GetOptions().map_entry
    if is_map and entry is not None:
        held, own = entry.fields_by_name["value"], rules.map.values
        items = rules.map.max_pairs or UNSAID
    else:
        held, own = field, rules.repeated.items if field.is_repeated else rules
        items = rules.repeated.max_items or UNSAID
    texts = is_map and entry is not None and entry.fields_by_name["key"].type == FieldDescriptor.TYPE_STRING
    return _Limits(
        field,
        items,
        own.string if held.type == FieldDescriptor.TYPE_STRING and own.HasField("string") else None,
        own.bytes if held.type == FieldDescriptor.TYPE_BYTES and own.HasField("bytes") else None,
        rules.map.keys.string if texts and rules.map.keys.HasField("string") else None,
        is_map,
        held.message_type is not None and own.ignore != validate_pb2.IGNORE_ALWAYS,
    )


class _Measure:
    """Counts and sizes, before anything looks at each item: protovalidate does so however many there are."""

    def __init__(self, message: Message, path: Sequence[str] = ()) -> None:
        self.items = 0
        """How many were looked at; no more than are allowed."""
        self.excess = self._of(message, "", path)
        """The first field that holds more than it may."""

    def _of(self, message: Any, at: str, path: Sequence[str]) -> Violation | None:
        known = _known_of(message.DESCRIPTOR)
        if known.is_value:
            # It nests without end, and no request means more by it than a scalar.
            nests = message.WhichOneof("kind") in ("struct_value", "list_value")
            return Violation(at, "a value must be a string, a bool or a number") if nests else None
        # What is not set is left out: it is empty, and holds no more than it may.
        for field, value in message.ListFields():
            number = field.number
            short = known.short.get(number)
            if (short is not None and len(value) <= short) or number not in known.limits:
                continue
            if path and field.name != path[0]:
                continue
            name = f"{at}.{field.name}" if at else field.name
            found = self._field(known.limits[number], value, name, path[1:])
            if found is not None:
                return found
        return None

    def _field(self, limits: _Limits, value: Any, at: str, path: Sequence[str]) -> Violation | None:
        if limits.field.is_repeated and len(value) > limits.items:
            what = "at most {} entries" if limits.is_map else "no more than {} item(s)"
            return Violation(at, "must contain " + what.format(limits.items))
        if limits.is_map:
            self.items += len(value)
            held = [(at, each) for each in value.values()]
            for key in value if limits.key is not None else ():
                if (said := _too_long(key, limits.key)) is not None:
                    return Violation(at, said)
        elif limits.field.is_repeated:
            self.items += len(value)
            held = [(f"{at}[{index}]", each) for index, each in enumerate(value)]
        else:
            held = [(at, value)]
        rules = limits.text if limits.text is not None else limits.bytes_
        for where, each in held if rules is not None or limits.nested else ():
            if limits.nested:
                found = self._of(each, where, path)
                if found is not None:
                    return found
            elif (said := _too_long(each, rules)) is not None:
                return Violation(where, said)
        return None


def _too_long(value: str | bytes, rules: Any) -> str | None:
    size = len(value)
    limit, unit = _longest(rules)
    if unit == "bytes" and isinstance(value, str) and size <= limit:
        # A character is four bytes at most, so what is far too long is not encoded to find out.
        size = len(value.encode("utf-8", "surrogatepass"))
    return f"must be at most {limit} {unit}" if size > limit else None


def _longest(rules: Any) -> tuple[int, str]:
    """How long a value may be by its rules, and what is counted."""
    if isinstance(rules, validate_pb2.BytesRules):
        return rules.len or rules.max_len or UNSAID, "bytes"
    if rules.max_bytes or rules.len_bytes:
        return rules.max_bytes or rules.len_bytes, "bytes"
    return rules.len or rules.max_len or UNSAID, "characters"


def _judged(message: Message, measure: _Measure) -> list[Violation]:
    if measure.excess is not None:
        return [measure.excess]
    found = [
        Violation(_path(v.proto.field), v.proto.message)
        for v in protovalidate.collect_violations(message, fail_fast=measure.items > SEVERAL)
    ]
    # Whatever holds a NUL has a zero byte on the wire, and few messages have one: only those are walked.
    if found or b"\0" not in message.SerializePartialToString():
        return found
    return [Violation(path, "must not hold a NUL character") for path in _nul_fields(message, "")]


def _only(message: Any, path: Sequence[str]) -> Any:
    """A message that carries one field of another."""
    made, (name, *rest) = type(message)(), path
    field, value = made.DESCRIPTOR.fields_by_name[name], getattr(message, name)
    if field.is_repeated:
        getattr(made, name).extend([_only(item, rest) for item in value] if rest else value)
    elif field.has_presence and not message.HasField(name):
        return made
    elif field.message_type is not None:
        getattr(made, name).CopyFrom(_only(value, rest) if rest else value)
    else:
        setattr(made, name, value)
    return made


def _covers(field: str, name: str) -> bool:
    """Whether a violation of `field` is one of `name`: of an item of it, or of what holds it."""
    bare = re.sub(r"\[\d+\]", "", field)
    return name == bare or name.startswith(bare + ".")


def _path(path: Any) -> str:
    text = ""
    # A rule over a whole message names no field.
    for element in path.elements if path is not None else ():
        text += ("." if text else "") + element.field_name
        subscript = element.subscript
        if subscript is not None and getattr(subscript, "field", None) == "index":
            text += f"[{subscript.value}]"
    return text


def _nul_fields(message: Message, prefix: str) -> list[str]:
    """Paths of string fields with a NUL; fields whose items are validated alone are left to whoever does that."""
    found: list[str] = []
    for field, value in message.ListFields():
        rules = field.GetOptions().Extensions[validate_pb2.field]
        if rules.repeated.items.ignore == validate_pb2.IGNORE_ALWAYS:
            continue
        name = f"{prefix}{field.name}"
        for item in _items(field, value):
            if isinstance(item, str):
                found += [name] if "\0" in item else []
            elif isinstance(item, Message):
                found += _nul_fields(item, name + ".")
    return found


def _items(field: FieldDescriptor, value: Any) -> list[Any]:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return [*value.keys(), *value.values()]
    if field.is_repeated:
        return list(value)
    return [value]
