"""What the rules of a proto refuse is named by its field, or as the request where a rule is over all of it."""

import pytest
from teamlore.auth.v1 import auth_pb2

from kit import validation
from kit.errors import Refusal


def test_a_rule_over_a_whole_message_is_a_refusal_too() -> None:
    for wrong in (
        auth_pb2.StartSessionRequest(),
        auth_pb2.StartSessionRequest(id_token="a", person_token="b"),
    ):
        with pytest.raises(Refusal, match="request: ") as found:
            validation.check(wrong)
        assert found.value.reason == "FIELD_INVALID"
        assert [violation.field for violation in found.value.violations] == [""]
    validation.check(auth_pb2.StartSessionRequest(person_token="b"))
