"""Which near texts say the same, and which deny each other or speak of something else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.index.polarity import Reading
from services.index.polarity import differs as readings_differ

OTHER = [
    ("We use Kafka for the order queue.", "We do not use Kafka for the order queue."),
    ("We use Kafka for the order queue.", "We don\u2019t use Kafka for the order queue."),
    ("We always retry a failed payment.", "We never retry a failed payment."),
    ("A retry is safe here.", "No retry is safe here."),
    ("The worker can run with a lock.", "The worker can run without a lock."),
    ("The cache must be cleared at deploy.", "The cache must not be cleared at deploy."),
    ("You can share one connection between tasks.", "You can't share one connection between tasks."),
    ("You can share one connection between tasks.", "You cannot share one connection between tasks."),
    ("We use SQS instead of Kafka.", "We use Kafka instead of SQS."),
    ("We use SQS, not Kafka, for orders.", "We use Kafka, not SQS, for orders."),
    ("We prefer SQS over Kafka.", "We prefer Kafka over SQS."),
    ("Copy the rows from staging to production.", "Copy the rows from production to staging."),
    ("Enable strict mode in the linter.", "Disable strict mode in the linter."),
    ("Strict mode is enabled in the linter.", "Strict mode is disabled in the linter."),
    ("Turn the flag on before a release.", "Turn the flag off before a release."),
    ("Run migrations before the deploy.", "Run migrations after the deploy."),
    ("The field is required in the form.", "The field is optional in the form."),
    ("The list is mutable.", "The list is immutable."),
    ("Admins may delete a bank.", "Only admins may delete a bank."),
    ("Admins must sign each release.", "Admins may sign each release."),
    ("The team signs each release.", "The team must sign each release."),
    ("The timeout is 3 seconds.", "The timeout is 5 seconds."),
    ("The timeout is 3 seconds.", "The timeout is 3 ms."),
    ("The timeout is 3s.", "The timeout is 3 minutes."),
    ("We keep two replicas.", "We keep three replicas."),
    ("Pin protobuf to 5.27.1.", "Pin protobuf to 5.27.2."),
    ("We support Python 3.11.", "We support Python 3.12."),
    ("Call get_user before the check.", "Call get_users before the check."),
    ("Set MAX_RETRIES in the settings.", "Set MAX_DELAY in the settings."),
    ("The config lies in app/config.toml.", "The config lies in app/settings.toml."),
    ("Pass --force to the script.", "Pass --dry-run to the script."),
    ("Ask Alice about billing.", "Ask Bob about billing."),
    ("Alice owns billing.", "Bob owns billing."),
    ("We run Postgres in Frankfurt.", "We run Postgres in Dublin."),
    ("The handler raises KeyError.", "The handler raises ValueError."),
    ("The server sends a heartbeat.", "The client sends a heartbeat."),
    ("We no longer deploy on Fridays.", "We deploy on Fridays."),
    ("Wir nutzen hier Kafka.", "Wir nutzen hier kein Kafka."),
    ("Everything but the tests passed.", "Nothing but the tests passed."),
]
SAME = [
    ("We use SQS for the order queue.", "We use SQS for the order queue"),
    ("We use SQS for the order queue.", "we use sqs for the order queue."),
    ("We use SQS for the order queue.", "We are using SQS for the order queue."),
    ("We do not use Kafka for orders.", "We don't use Kafka for orders."),
    ("We never use Kafka for orders.", "We do not use Kafka for orders."),
    ("You cannot share a connection.", "You can't share a connection."),
    ("We use SQS instead of Kafka.", "We use SQS rather than Kafka."),
    ("The timeout is 3 seconds.", "The timeout is three seconds."),
    ("The timeout is 3s.", "The timeout is 3 sec."),
    ("The limit is 1,000 records a call.", "The limit is 1000 records a call."),
    ("Services talk gRPC to each other.", "The services talk gRPC to each other."),
    (
        "We chose SQS for the order queue because it is simple.",
        "We picked SQS for the order queue because it is simple.",
    ),
    ("Call get_user before the check.", "Call `get_user` before the check."),
    ("You have to sign each release.", "You must sign each release."),
    ("The nightly backup goes to cold storage.", "Nightly backups go to cold storage."),
]


def differs(one: str, other: str) -> bool:
    return readings_differ(Reading(one), Reading(other))


@pytest.mark.parametrize(("one", "other"), OTHER)
def test_texts_that_deny_each_other_or_speak_of_something_else(one: str, other: str) -> None:
    assert differs(one, other) and differs(other, one)


@pytest.mark.parametrize(("one", "other"), SAME)
def test_texts_that_say_the_same(one: str, other: str) -> None:
    assert not differs(one, other) and not differs(other, one)


@given(st.text(max_size=80), st.text(max_size=80))
def test_it_is_symmetric_and_no_text_differs_from_itself(one: str, other: str) -> None:
    assert differs(one, other) == differs(other, one)
    assert not differs(one, " " + one + "\n")


@pytest.mark.parametrize("piece", ["a.", "_", "A_", "not ", "1,", "1.", "-", "n't"])
def test_no_text_makes_it_slow(piece: str) -> None:
    differs((piece * 8000)[:8000], (piece * 8000)[:7999] + "x")
