"""Makes garbage for every field of a request, from its descriptor alone, so that a new call cannot escape."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

LONE_SURROGATE = b"\xed\xa0\x80"
TEXTS = (
    "", " ", "a\0b", "\x01\x02\x1b[31m", "x" * 60_000, "\u202e\ufeff\U0010ffff", "%s{}';--", "../../etc/passwd",
    "project:*", "private:user:bob", "a" * 256,
)  # fmt: skip
NUMBERS = (-(2**31), -1, 0, 1, 2**31 - 1)
# The first and last second that a Timestamp may hold, the seconds beyond, and nanoseconds out of range.
TIMES = (
    (-62135596800, 0), (253402300799, 999999999), (-62135596801, 0), (253402300800, 0), (2**62, 0), (0, -1), (0, 2**31 - 1),
)  # fmt: skip


@dataclass(frozen=True)
class Garbage:
    """One spoiled request: which field, how, the bytes, and whether the bytes decode at all."""

    field: str
    how: str
    raw: bytes
    decodes: bool = True


def spoil(valid: Message) -> Iterator[Garbage]:
    """Every spoiled form of a valid request."""
    yield Garbage("", "not a message", b"\xff\xff\xff\xff", False)
    yield Garbage(
        "", "truncated", valid.SerializeToString()[:-1] + b"\x80" if valid.ByteSize() else b"\x80", False
    )
    yield Garbage("", "nothing at all", b"")
    yield Garbage("", "unknown fields", valid.SerializeToString() + b"\xfa\x3e\x05hello")
    yield from _of_message(valid.DESCRIPTOR, valid, "", lambda spoiled: spoiled.SerializeToString())


def _of_message(descriptor: Descriptor, valid: Any, prefix: str, wrap: Any) -> Iterator[Garbage]:
    for field in descriptor.fields:
        path = prefix + field.name
        for how, change in _changes(field):
            copy = message_factory.GetMessageClass(descriptor)()
            copy.CopyFrom(valid)
            try:
                change(copy)
            except (ValueError, TypeError):
                continue
            yield Garbage(path, how, wrap(copy))
        if field.type == FieldDescriptor.TYPE_STRING and not prefix:
            tag = bytes([field.number << 3 | 2, len(LONE_SURROGATE)])
            yield Garbage(path, "lone surrogate", valid.SerializeToString() + tag + LONE_SURROGATE, False)
        if not prefix and field.number < 16:
            yield Garbage(
                path,
                "wrong wire type",
                valid.SerializeToString() + bytes([field.number << 3 | 5]) + b"\1\2\3\4",
            )
        if field.is_repeated and field.message_type and not field.message_type.GetOptions().map_entry:
            items = getattr(valid, field.name)
            if len(items):
                yield from _of_message(
                    field.message_type, items[0], path + ".", _put_back(valid, field, wrap)
                )
        elif _is_message(field) and valid.HasField(field.name):
            inner = getattr(valid, field.name)
            yield from _of_message(field.message_type, inner, path + ".", _put_back(valid, field, wrap))


def _is_message(field: FieldDescriptor) -> bool:
    """Whether it is one message of ours, with fields of its own to spoil."""
    return (
        not field.is_repeated
        and field.message_type is not None
        and field.message_type.full_name.startswith("teamlore.")
    )


def _put_back(valid: Any, field: FieldDescriptor, wrap: Any) -> Any:
    def put(item: Message) -> bytes:
        copy = message_factory.GetMessageClass(valid.DESCRIPTOR)()
        copy.CopyFrom(valid)
        kept = getattr(copy, field.name)
        (kept[0] if field.is_repeated else kept).CopyFrom(item)
        result: bytes = wrap(copy)
        return result

    return put


def _changes(field: FieldDescriptor) -> Iterator[tuple[str, Any]]:
    name = field.name
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        yield from _metadata(name)
    elif field.is_repeated:
        yield "none", lambda m: m.ClearField(name)
        yield "1001 of them", lambda m: getattr(m, name).extend(_many(m, name))
        if field.type == FieldDescriptor.TYPE_STRING:
            for text in TEXTS:
                yield f"holds {text[:12]!r}", lambda m, t=text: getattr(m, name).append(t)
    elif field.type == FieldDescriptor.TYPE_STRING:
        for text in TEXTS:
            yield f"is {text[:12]!r}", lambda m, t=text: setattr(m, name, t)
    elif field.message_type is not None and field.message_type.full_name == "google.protobuf.Timestamp":
        for seconds, nanos in TIMES:
            yield (
                f"is {seconds} s {nanos} ns",
                lambda m, s=seconds, n=nanos: _set_time(getattr(m, name), s, n),
            )
    elif _is_message(field):
        yield "is absent", lambda m: m.ClearField(name)
    elif field.cpp_type in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64):
        for number in NUMBERS:
            yield f"is {number}", lambda m, n=number: setattr(m, name, n)
    elif field.cpp_type == FieldDescriptor.CPPTYPE_FLOAT:
        for value in (float("nan"), float("inf"), -1.0, 1e30):
            yield f"is {value}", lambda m, v=value: setattr(m, name, v)


def _many(message: Any, name: str) -> list[Any]:
    items = list(getattr(message, name))
    return items[:1] * 1000


def _set_time(stamp: Any, seconds: int, nanos: int) -> None:
    stamp.seconds, stamp.nanos = seconds, nanos


def _metadata(name: str) -> Iterator[tuple[str, Any]]:
    def deep(message: Any) -> None:
        value = getattr(message, name)["deep"]
        for _ in range(30):
            value = value.list_value.values.add()
        value.string_value = "x"

    yield "deep", deep
    yield "null", lambda m: setattr(getattr(m, name)["k"], "null_value", 0)
    yield "not a number", lambda m: setattr(getattr(m, name)["k"], "number_value", float("nan"))
    yield "beyond 2^53", lambda m: setattr(getattr(m, name)["k"], "number_value", 2.0**60)
    yield "no kind", lambda m: getattr(m, name)["k"]
    yield "huge", lambda m: setattr(getattr(m, name)["k"], "string_value", "x" * 100_000)
    yield "empty key", lambda m: setattr(getattr(m, name)[""], "string_value", "x")
    yield "NUL in a key", lambda m: setattr(getattr(m, name)["a\0b"], "string_value", "x")
    yield "NUL in a value", lambda m: setattr(getattr(m, name)["k"], "string_value", "a\0b")
