"""The table covers the enum, and a wrong environment names each variable."""

from dataclasses import dataclass

import asyncpg
import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from kit import errors
from kit.config import ConfigError, load, setting
from kit.dialing import refusal_of


def test_the_table_has_every_reason_and_no_other() -> None:
    assert sorted(errors.TABLE) == sorted(errors.reasons())


def test_a_refusal_carries_one_info_the_fields_and_the_http_number() -> None:
    refusal = errors.Refusal("BANK_HELD", "held")
    sent = dict(errors.trailers(refusal))
    assert sent["x-http-status"] == "423"
    refusal = errors.field_invalid("records", "too many")
    sent = dict(errors.trailers(refusal))
    assert "x-http-status" not in sent
    status = status_pb2.Status.FromString(sent["grpc-status-details-bin"])
    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    assert status.details[0].Unpack(info) and status.details[1].Unpack(bad) and len(status.details) == 2
    assert (info.reason, info.domain) == ("FIELD_INVALID", "teamlore.dev")
    assert [v.field for v in bad.field_violations] == ["records"]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (asyncpg.CannotConnectNowError("x"), "DEPENDENCY_UNAVAILABLE"),
        (asyncpg.InterfaceError("connection is closed"), "DEPENDENCY_UNAVAILABLE"),
        (asyncpg.DiskFullError("x"), "DEPENDENCY_UNAVAILABLE"),
        (ConnectionRefusedError(), "DEPENDENCY_UNAVAILABLE"),
        (asyncpg.InternalClientError("died"), "DEPENDENCY_UNAVAILABLE"),
        (asyncpg.UniqueViolationError("x"), None),
        (KeyError("x"), None),
    ],
)
def test_what_a_driver_raises(error: Exception, reason: str | None) -> None:
    found = errors.from_driver(error)
    assert (found.reason if found else None) == reason


def test_each_code_has_a_number_of_its_own_or_a_trailer() -> None:
    for reason, rule in errors.TABLE.items():
        sent = dict(errors.trailers(errors.Refusal(reason, "x")))
        assert isinstance(rule.code, grpc.StatusCode) and (
            "x-http-status" in sent or rule.http in range(400, 600)
        )


def test_what_may_work_later_always_says_when() -> None:
    for reason, rule in errors.TABLE.items():
        status = status_pb2.Status.FromString(
            dict(errors.trailers(errors.Refusal(reason, "x")))["grpc-status-details-bin"]
        )
        later = rule.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)
        assert any(detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR) for detail in status.details) == later, reason
    assert errors.Refusal("DRAINING", "x", retry_after=7).retry_after == 7


def test_a_neighbours_refusal_keeps_its_reason_and_its_wait() -> None:
    for refusal in (errors.Refusal("RATE_LIMITED", "x", retry_after=7), errors.Refusal("NOT_FOUND", "x")):
        trailers = grpc.aio.Metadata(*errors.trailers(refusal))
        told = refusal_of(grpc.aio.AioRpcError(refusal.rule.code, grpc.aio.Metadata(), trailers))
        assert (told.reason, told.retry_after) == (refusal.reason, refusal.retry_after)


@dataclass(frozen=True)
class Config:
    url: str = setting("DATABASE_URL")
    port: int = setting("TEAMLORE_PORT", 5, minimum=1, maximum=9)
    rate: float | None = setting("TEAMLORE_RATE", None, minimum=0.5, maximum=2)
    mode: str = setting("BANK_CREATION", "writers", choices=("writers", "admin"))
    loud: bool = setting("TEAMLORE_LOUD", False)
    most: int | None = setting("TEAMLORE_MOST", None)


def test_settings_are_read_and_typed() -> None:
    assert load(Config, {"DATABASE_URL": "x", "TEAMLORE_PORT": "7", "TEAMLORE_LOUD": "true"}) == Config(
        "x", 7, None, "writers", True
    )


def test_all_problems_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        load(
            Config,
            {"TEAMLORE_PORT": "seven", "BANK_CREATION": "anyone", "TEAMLORE_PRT": "1", "TEAMLORE_MOST": "x"},
        )
    text = str(caught.value)
    for part in (
        "DATABASE_URL is not set",
        "TEAMLORE_PORT must be a whole number",
        "TEAMLORE_MOST must be a whole number",
        "BANK_CREATION must be one of",
        "TEAMLORE_PRT",
    ):
        assert part in text


@pytest.mark.parametrize("value", ["0", "10", "-1", str(10**12), "9" * 400])
def test_a_whole_number_outside_its_range_is_named_with_the_range(value: str) -> None:
    with pytest.raises(ConfigError, match=r"^TEAMLORE_PORT must be a whole number from 1 to 9$"):
        load(Config, {"DATABASE_URL": "x", "TEAMLORE_PORT": value})


@pytest.mark.parametrize("value", ["0.4", "2.1", "nan", "inf", "-inf", "1e999", "-0"])
def test_a_number_outside_its_range_is_named_with_the_range(value: str) -> None:
    with pytest.raises(ConfigError, match=r"^TEAMLORE_RATE must be a number from 0\.5 to 2$"):
        load(Config, {"DATABASE_URL": "x", "TEAMLORE_RATE": value})


def test_the_ends_of_a_range_belong_to_it() -> None:
    for port, rate in ((1, 0.5), (9, 2.0)):
        given = {"DATABASE_URL": "x", "TEAMLORE_PORT": str(port), "TEAMLORE_RATE": str(rate)}
        assert load(Config, given) == Config("x", port, rate)
