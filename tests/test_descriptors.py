"""Walks all descriptors: every method of ours has an access rule, an audit name, and fields that exist."""

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from teamlore.common.v1 import access_pb2

from kit.authorising import access_of
from kit.validation import violations_at

PROTOS = Path(__file__).resolve().parents[1] / "protos"


def services() -> Iterator[ServiceDescriptor]:
    # Every file there is, so that a service in a file of its own cannot escape.
    for file in sorted(PROTOS.glob("teamlore/*/v1/*.proto")):
        name = ".".join(file.relative_to(PROTOS).with_suffix("").parts)
        module = importlib.import_module(f"{name}_pb2")
        yield from module.DESCRIPTOR.services_by_name.values()


def methods() -> list[MethodDescriptor]:
    return [method for service in services() for method in service.methods]


@pytest.mark.parametrize("method", methods(), ids=lambda m: m.full_name)
def test_every_method_says_who_may_call_it(method: MethodDescriptor) -> None:
    access = access_of(method)
    rule = access.WhichOneof("rule")
    assert rule is not None
    assert access.audit
    if rule in ("bank", "banks", "resource", "deployment"):
        assert access.permission != access_pb2.PERMISSION_UNSPECIFIED
    assert not access.also or rule == "resource"
    if rule in ("bank", "banks", "resource", "pattern"):
        descriptor = method.input_type
        for part in getattr(access, rule).split("."):
            field = descriptor.fields_by_name[part]
            descriptor = field.message_type
    else:
        assert getattr(access, rule) is True


def test_audit_names_are_told_apart() -> None:
    names = [access_of(method).audit for method in methods()]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("method", [m for m in methods() if access_of(m).bank], ids=lambda m: m.full_name)
def test_a_token_by_mistake_is_no_bank(method: MethodDescriptor) -> None:
    name = access_of(method).bank
    request = message_factory.GetMessageClass(method.input_type)()
    for bank, refused in (("project:orders-1", False), ("project:tlk_" + "A" * 43, True)):
        setattr(request, name, bank)
        assert bool(violations_at(request, name)) == refused
