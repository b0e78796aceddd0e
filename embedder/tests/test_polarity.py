"""Which near texts say the same, and which deny each other or speak of something else."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from teamlore_embedder.polarity import Reading
from teamlore_embedder.polarity import differs as readings_differ

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
    ("Raise an alarm below -5 degrees.", "Raise an alarm below 5 degrees."),
    ("Raise an alarm below \u22125 degrees.", "Raise an alarm below 5 degrees."),
    ("Keep the logs for twenty days.", "Keep the logs for ninety days."),
    ("Keep the logs for thirteen days.", "Keep the logs for thirty days."),
    ("Keep two hundred connections.", "Keep three hundred connections."),
    ("Keep twenty-one connections.", "Keep twenty-two connections."),
    ("Keep twenty one connections.", "Keep twenty connections."),
    ("Keep a hundred and five rows.", "Keep a hundred and six rows."),
    ("Retry once.", "Retry twice."),
    ("Ask the first replica.", "Ask the second replica."),
    ("Half of the traffic goes to the canary.", "A tenth of the traffic goes to the canary."),
    ("Scale out when load > 70.", "Scale out when load < 70."),
    ("Scale out when load >= 70.", "Scale out when load > 70."),
    ("Scale out when load>70.", "Scale out when load<70."),
    ("The guard reads amount == limit.", "The guard reads amount != limit."),
    ("The guard reads amount \u2264 limit.", "The guard reads amount \u2265 limit."),
    ("The offset is +3 hours.", "The offset is -3 hours."),
    ("The tolerance is +/-3.", "The tolerance is 3."),
    ("Orders -> billing.", "Orders <- billing."),
    ("The flag is !ready.", "The flag is ready."),
    ("The price is $100.", "The price is \u20ac100."),
    ("The price is $100.", "The price is 100."),
    ("Reserve 20 % of the disk.", "Reserve 20 GB of the disk."),
    ("Reserve 20 % of the disk.", "Reserve 20 of the disk."),
    ("Use the eu-west region.", "Use the eu-east region."),
    ("Use the order-service account.", "Use the order-service-canary account."),
    ("Deploy to staging.eu first.", "Deploy to staging.us first."),
    ("The parser is written in C.", "The parser is written in C++."),
    ("The parser is written in C.", "The parser is written in C#."),
    ("We follow plan A.", "We follow plan B."),
    ("We follow plan A.", "We follow the plan."),
    ("We should use Kafka?", "We should use Kafka."),
    ("They own it.", "We own it."),
    ("Not every call is retried.", "No call is retried."),
    ("The guard reads amount != limit.", "The guard reads amount = limit."),
    ("Pass -f to the script.", "Pass -n to the script."),
    ("Use v1 of the api.", "Use v2 of the api."),
    ("Sign with oauth1.", "Sign with oauth2."),
    ("alice reviews what bob writes", "bob reviews what alice writes"),
    ("the billing team pages the platform team", "the platform team pages the billing team"),
    ("Build, then test, then sign.", "Build, then sign, then test."),
    ("We prefer composition to inheritance.", "We prefer inheritance to composition."),
    ("Migrations run automatically.", "Migrations run manually."),
    ("The limit is strict.", "The limit is loose."),
    ("Mocking the database is good.", "Mocking the database is bad."),
    ("The backup goes to the primary region.", "The backup goes to the secondary region."),
    ("Sort by date, oldest first.", "Sort by date, newest first."),
    ("The release train leaves weekly.", "The release train leaves monthly."),
    ("The release train leaves each week.", "The release train leaves each month."),
    ("The cookie expires in an hour.", "The cookie expires in a day."),
    ("Timestamps are in seconds.", "Timestamps are in milliseconds."),
    ("the queue runs on kafka", "the queue runs on rabbitmq"),
    ("mails are sent by alice", "mails are sent by bob"),
    ("Reviews by maria are needed.", "Reviews by marie are needed."),
    ("jan owns the deploy", "jane owns the deploy"),
    ("Restart it after a deploy.", "Restart it during a deploy."),
    ("The proxy stands in front of the api.", "The proxy stands behind the api."),
    ("Indent with tabs.", "Indent with spaces."),
    ("Write the times in utc.", "Write the times in local time."),
    ("We stopped using flags.", "We started using flags."),
    ("We stopped using flags.", "We use flags."),
    ("We used to use flags.", "We use flags."),
    ("The old service was the source of truth.", "The old service is the source of truth."),
    ("We own the login page.", "They own the login page."),
    ("I own the login page.", "You own the login page."),
    ("The call is blocking.", "The call is blocked."),
    ("Admins and owners may delete.", "Admins or owners may delete."),
    ("Restart the worker if it hangs.", "Restart the worker unless it hangs."),
    ("Move the rows to staging.", "Move the rows from staging."),
    ("Should we use Kafka?", "We should use Kafka."),
    ("Delete the logs after a week.", "Delete the audit logs after a week."),
    ("Rotate the keys.", "Rotate the keys monthly."),
    ("Rotate the keys.", "Rotate the keys manually."),
    ("Run the tests.", "Run the tests in staging."),
    ("All admins may delete a bank.", "Not all admins may delete a bank."),
    ("\u2705 ship the dark mode", "\u274c ship the dark mode"),
    ("ร้านค้าใช้คิว", "ร้านค้าใช้คีว"),
    ("\u6211\u4eec\u4f7f\u7528\u5361\u592b\u5361", "\u6211\u4eec\u4e0d\u4f7f\u7528\u5361\u592b\u5361"),
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
    ("We use SQS for the order queue.", "We use SQS for order queues"),
    ("We use SQS for the order queue.", "We're using SQS for our order queue."),
    ("We use SQS for the order queue.", "WE USE SQS FOR THE ORDER QUEUE!"),
    ("We use SQS for the order queue.", "Decision: we use SQS for the order queue."),
    ("We use SQS for the order queue.", "We decided to use SQS for the order queue."),
    ("We use SQS for the order queue.", "- We use **SQS** for the order queue."),
    ("We use SQS \u2014 it is simple.", "We use SQS: it's simple."),
    ("We use SQS - it is simple.", "We use SQS (it is simple)."),
    ("It is the team's choice.", "It\u2019s the team\u2019s choice"),
    ('Say "no" to it.', "Say \u201cno\u201d to it."),
    ("The worker retries a failed call.", "Workers retry failed calls."),
    ("The worker stops and logs the classes.", "The workers stopped, and logged the class."),
    ("Caches are read-only.", "The cache is read only."),
    ("Keep twenty-one rows.", "Keep 21 rows."),
    ("Keep two hundred and five rows.", "Keep 205 rows."),
    ("Keep two thousand rows.", "Keep 2,000 rows."),
    ("Keep a hundred rows.", "Keep 100 rows."),
    ("Retry twice.", "Retry two times."),
    ("Reserve 20 % of the disk.", "Reserve 20% of the disk."),
    ("Reserve 20 % of the disk.", "Reserve twenty percent of the disk."),
    ("The price is $100.", "The price is 100 dollars."),
    ("The timeout is 30 minutes.", "The timeout is 30min."),
    ("Scale out when load \u2265 70.", "Scale out when load >= 70."),
    ("Keep 3-5 replicas.", "Keep 3\u20135 replicas."),
    ("The guard reads a -> b.", "The guard reads a \u2192 b."),
    ("We choose SQS.", "We have chosen SQS."),
    ("The repo of the docs is public.", "The repository of the documentation is public."),
    ("All banks are closed at night.", "Banks are closed at night."),
    ("We use SQS.\n* It is simple.", "We use SQS. It is simple."),
    ("Please note: the worker is restarted.", "The worker is restarted."),
    ("The worker isn't restarted.", "The worker is not restarted."),
    ("Caf\u00e9 logs are kept.", "Cafe\u0301 logs are kept."),
]


def differs(one: str, other: str) -> bool:
    return readings_differ(Reading(one), Reading(other))


@pytest.mark.parametrize(("one", "other"), OTHER)
def test_texts_that_deny_each_other_or_speak_of_something_else(one: str, other: str) -> None:
    assert differs(one, other) and differs(other, one)


@pytest.mark.parametrize(("one", "other"), SAME)
def test_texts_that_say_the_same(one: str, other: str) -> None:
    assert not differs(one, other) and not differs(other, one)


WORDS = st.lists(
    st.sampled_from("cache queue worker never before keep the a -5 three < == eu-west get_user SQS redis".split()),
    min_size=1,
    max_size=8,
)
NAMES = st.sampled_from(("alice", "bob", "Kafka", "SQS", "eu-west", "eu-east", "get_user", "app/config.toml", "redis"))
NUMBERS = st.one_of(
    st.integers(-(10**6), 10**6).map(str), st.sampled_from("two nine twenty ninety 3.11 3.12 1.5 twice once".split())
)


def _value(number: str) -> str:
    return {"two": "2", "nine": "9", "twenty": "20", "ninety": "90"}.get(number, number)


@given(st.text(max_size=80), st.text(max_size=80))
def test_it_is_symmetric_and_no_text_differs_from_itself(one: str, other: str) -> None:
    assert differs(one, other) == differs(other, one)
    assert not differs(one, " " + one + "\n")


@given(WORDS, WORDS)
def test_it_is_symmetric_over_words_as_well(one: list[str], other: list[str]) -> None:
    assert differs(" ".join(one), " ".join(other)) == differs(" ".join(other), " ".join(one))


@given(WORDS, st.sampled_from((" ", "  ", "\n", "\u00a0")), st.sampled_from((".", "!", "")))
def test_blanks_case_and_the_last_stop_say_nothing(words: list[str], blank: str, stop: str) -> None:
    text = " ".join(words)
    assert not differs(text, f"{blank}{blank.join(words)}{blank.strip(chr(160))}{stop}")
    assert not differs(text, text.upper())


@given(WORDS, NAMES, WORDS, NAMES, WORDS)
def test_two_names_that_change_places_always_differ(
    before: list[str], one: str, between: list[str], other: str, after: list[str]
) -> None:
    assume(one != other)
    text = " ".join([*before, one, *between, other, *after])
    assert differs(text, " ".join([*before, other, *between, one, *after]))


@given(WORDS, NUMBERS, NUMBERS, WORDS)
def test_another_number_always_differs(before: list[str], one: str, other: str, after: list[str]) -> None:
    assume(_value(one) != _value(other))
    assert differs(" ".join([*before, one, *after]), " ".join([*before, other, *after]))


@given(WORDS, st.sampled_from("not never without unless only manually secondary audit redis 7 > != must".split()), WORDS)
def test_a_word_more_that_says_something_always_differs(before: list[str], word: str, after: list[str]) -> None:
    assert differs(" ".join([*before, *after]), " ".join([*before, word, *after]))


@pytest.mark.parametrize(
    "piece", ["a.", "_", "A_", "not ", "1,", "1.", "-", "n't", "two ", "hundred and ", "< ", "a-", "--", "1 "]
)
def test_no_text_makes_it_slow(piece: str) -> None:
    differs((piece * 8000)[:8000], (piece * 8000)[:7999] + "x")
