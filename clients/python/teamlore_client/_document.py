"""access.yaml → AccessDocument: strict, so that a typing error is an error with its place and not a lost grant.

The form is the message's own: each field by its name on the wire. Two fields may be left out: `effect` is
`allow`, a member's `status` is `active`.
"""

import re
from dataclasses import dataclass
from typing import Any, ClassVar

import yaml
from google.protobuf.descriptor import FieldDescriptor
from teamlore.auth.v1 import access_pb2

from teamlore_client._memory import FieldInvalid

_CORE = "tag:yaml.org,2002:"
_DEFAULTS = {"AccessGrant": {"effect": "allow"}, "Membership": {"status": "active"}}
# A member stands inside its Team, which names it; which sections stand in a document is seen.
_UNTOLD = {"Membership": {"team_id"}, "AccessDocument": {"sections"}}
_SECTIONS = ("groups", "grants")


class DocumentInvalid(FieldInvalid):
    """The document breaks its form; the message names the path and the line."""


@dataclass(frozen=True)
class Document:
    """What a document says, and where it says it."""

    message: access_pb2.AccessDocument
    lines: dict[str, int]
    """Path of a value, such as `grants[2].pattern`, → its line."""

    def line_of(self, path: str) -> int | None:
        """Return the line of a path, or of what holds it where the path itself is not in the text."""
        while path and path not in self.lines:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return self.lines.get(path)


class _Loader(yaml.SafeLoader):
    """YAML 1.2's core schema: `off` and `no` are words here, as the values of a policy are."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}  # type: ignore[misc]  # the stubs call it an instance's


for _tag, _pattern, _first in (
    ("bool", r"^(?:true|false)$", "tf"),
    ("null", r"^(?:~|null|)$", ["~", "n", ""]),
    ("int", r"^[-+]?[0-9]+$", "-+0123456789"),
    ("float", r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$", "-+.0123456789"),
):
    _Loader.add_implicit_resolver(_CORE + _tag, re.compile(_pattern), list(_first))


def read_document(text: str, called: str = "access.yaml") -> Document:
    """Read a document. Raises DocumentInvalid with the first thing that is wrong, its path and its line."""
    try:
        for event in yaml.parse(text, Loader=_Loader):
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                line = event.start_mark.line + 1 if event.start_mark else 0
                raise DocumentInvalid(
                    f"{called}:{line}", "has an anchor or alias; a pattern that begins with * needs quotes"
                )
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{called}:{mark.line + 1}" if mark else called
        raise DocumentInvalid(place, f"is not YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise DocumentInvalid(called, f"is not YAML: {str(error).splitlines()[0]}") from None
    if root is None:
        raise DocumentInvalid(called, "is empty; an access document names what it manages")
    reader = _Reader(called)
    message = access_pb2.AccessDocument()
    reader.fill(message, root, "")
    message.sections.extend(name for name in _SECTIONS if name in reader.lines)
    return Document(message, reader.lines)


class _Reader:
    def __init__(self, called: str) -> None:
        self._called = called
        self.lines: dict[str, int] = {}

    def fill(self, message: Any, node: yaml.Node, path: str) -> None:
        """Fill a message from a mapping, in which every key is a field's name, once."""
        if not isinstance(node, yaml.MappingNode) or node.tag != f"{_CORE}map":
            raise self._wrong(node, path, "must be a mapping of names to values")
        kind = message.DESCRIPTOR
        untold = _UNTOLD.get(kind.name, set())
        fields = {each.name: each for each in kind.fields if each.name not in untold}
        seen: set[str] = set()
        for key, value in node.value:
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else ""
            inner = f"{path}.{name}" if path else name
            if name not in fields:
                known = ", ".join(fields)
                raise self._wrong(key, inner or path, f"is not known here; known are: {known}")
            if name in seen:
                raise self._wrong(key, inner, "stands here twice")
            seen.add(name)
            self.lines[inner] = key.start_mark.line + 1
            self._set(message, fields[name], value, inner)
        for name, default in _DEFAULTS.get(kind.name, {}).items():
            if name not in seen:
                setattr(message, name, default)

    def _set(self, message: Any, field: FieldDescriptor, node: yaml.Node, path: str) -> None:
        if not field.is_repeated:
            if field.message_type is not None:
                getattr(message, field.name).SetInParent()
                self.fill(getattr(message, field.name), node, path)
            else:
                setattr(message, field.name, self._scalar(field, node, path))
            return
        if not isinstance(node, yaml.SequenceNode) or node.tag != f"{_CORE}seq":
            raise self._wrong(node, path, "must be a list")
        for number, item in enumerate(node.value):
            inner = f"{path}[{number}]"
            self.lines[inner] = item.start_mark.line + 1
            if field.message_type is not None:
                self.fill(getattr(message, field.name).add(), item, inner)
            else:
                getattr(message, field.name).append(self._scalar(field, item, inner))

    def _scalar(self, field: FieldDescriptor, node: yaml.Node, path: str) -> str | bool | float:
        tag = node.tag.removeprefix(_CORE) if isinstance(node, yaml.ScalarNode) else ""
        if field.type == FieldDescriptor.TYPE_STRING and tag == "str":
            return str(node.value)
        if field.type == FieldDescriptor.TYPE_BOOL and tag == "bool":
            return bool(node.value == "true")
        if field.type == FieldDescriptor.TYPE_FLOAT and tag in ("int", "float"):
            return float(node.value)
        must = {
            FieldDescriptor.TYPE_STRING: "must be a text; put it in quotes",
            FieldDescriptor.TYPE_BOOL: "must be true or false",
            FieldDescriptor.TYPE_FLOAT: "must be a number",
        }
        raise self._wrong(node, path, must.get(field.type, "has a type this release does not know"))

    def _wrong(self, node: yaml.Node, path: str, rule: str) -> DocumentInvalid:
        line = node.start_mark.line + 1
        return DocumentInvalid(f"{self._called}:{line}{': ' + path if path else ''}", rule)
