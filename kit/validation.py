"""Judges a request by the rules in its proto, and by those that the proto language cannot say."""

from typing import Any

import protovalidate
from buf.validate import validate_pb2
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from kit.errors import Refusal, Violation


def violations_of(message: Message) -> list[Violation]:
    """What is wrong with a message, by field path; empty when nothing is. Never repeats the value."""
    found = [
        Violation(_path(v.proto.field), v.proto.message) for v in protovalidate.collect_violations(message)
    ]
    return found or [Violation(path, "must not hold a NUL character") for path in _nul_fields(message, "")]


def check(message: Message) -> None:
    """Raises Refusal FIELD_INVALID that names every field that breaks its rule."""
    found = violations_of(message)
    if found:
        first = found[0]
        raise Refusal(
            "FIELD_INVALID", f"{first.field or 'request'}: {first.description}", violations=found[:20]
        )


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
