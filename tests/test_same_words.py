"""What a laptop and a server must say alike, though neither may import the other."""

import inspect
import sys
from ipaddress import IPv4Address
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from buf.validate import validate_pb2
from hypothesis import given
from hypothesis import strategies as st
from teamlore.common.v1.citation_pb2 import Citation
from teamlore_client import _cli_memory, _memory, _rpc, _sources, _sync
from teamlore_embedder.polarity import normalised

from kit import texts
from kit.database import load_queries
from kit.validation import violations_of
from services.sync import sources
from services.sync.pushing import FORGOTTEN
from services.sync.records import CLAIM

BLANKS = st.sampled_from("\u115f\u1160\u2800\u3164\uffa0\u200b\u00ad\u0301\u00a0 \n\u2028")
TEXT = st.text(BLANKS | st.characters(codec="utf-8"), max_size=8)


def test_a_letter_is_seen_by_both_or_by_none() -> None:
    every = map(chr, range(sys.maxunicode + 1))
    assert [each for each in every if _memory.visible(each) != texts.visible(each)] == []


@given(TEXT | st.text("a- \n\t\u1fef", max_size=8))
def test_the_same_words_are_the_same_to_both(text: str) -> None:
    assert normalised(text) == texts.normalised(text)


def test_words_of_the_wire() -> None:
    assert _sync.FORGOTTEN == FORGOTTEN
    assert CLAIM == _memory.CLAIM


def test_the_most_that_is_named_to_who_is_about_to_forget() -> None:
    queries = load_queries(Path(__file__).parents[1] / "services" / "sync" / "queries.sql")
    assert queries["together"].endswith(f" limit {_rpc.TOGETHER_MOST}")


def test_one_rule_says_what_teammates_can_open() -> None:
    rules = Citation.DESCRIPTOR.fields_by_name["uri"].GetOptions().Extensions[validate_pb2.field]
    assert rules.string.pattern == _cli_memory.OPENABLE.pattern
    (rule,) = rules.cel
    assert rule.expression == f"!this.matches(r'{_cli_memory.NOT_OPENABLE.pattern}')"


@pytest.mark.parametrize(
    "uri",
    ["https://wiki.example.com/q?a=1#b", "http://wiki.example.com:8080", "http://8.8.8.8/x",
     "https://de.wikipedia.org/wiki/L\u00f6we",
     "https://example.com/a%20b?next=..%2F..#../x", "https://example.com/a./b..c/...", "https://wiki.corp.example.com",
     "https://local.example.org/", "repo:docs/my%20notes.md", "repo:a%2Fb.md", "repo:./x",
     "repo:docs/adr/0003.md@4f2a9c1#L12", "repo:.github/x", "repo:a/./b", "repo:..a/b", "repo:@scope/a..b", "repo:a.md#L1:3"],
)  # fmt: skip
def test_a_source_that_opens(uri: str) -> None:
    assert violations_of(Citation(uri=uri)) == [] and _cli_memory.openable(uri) and sources.openable(uri)


@pytest.mark.parametrize(
    "uri",
    ["http://localhost", "http://localhost:3000/notes", "https://LOCALHOST/x", "http://a.localhost", "http://wiki/queues",
     "https://127.0.0.1/x", "http://127.1", "http://0x7f.1", "http://2130706433", "http://0177.0.0.1", "http://0.0.0.0",
     "http://10.1.2.3", "http://172.16.0.1", "http://192.168.1.4/", "http://169.254.169.254/latest", "http://100.64.0.1",
     "http://224.0.0.1", "http://8.8.8.999", "http://nas.local/x", "https://vault.internal:8200", "http://box.lan#x",
     "http://printer.home.arpa?x", "https://wiki.corp/x", "https://x.intranet", "https://x.private", "https://a.b.test",
     "https://x.LOCALHOST", "https://printer.home", "https://my-nas.fritz.box", "https://host.docker.internal", "https://1.2.3",
     "https://8.8.8.8.local", "http://0x7f000001", "http://0X7F.0x0.0x0.0x1", "http://017700000001", "http://127.0.0.0x1",
     "https://example.com/a/../b", "https://example.com/..", "https://example.com/%2e%2E/x", "https://example.com/a/.%2e/b",
     "https://example.com/a%2f..%5cb", "https://example.com/%252e%252e/x", "https://example.com/a/..;x/b",
     "https://example.com/%25252525252e", "repo:.", "repo:./", "repo:.@4f2a", "repo:.#L1", "repo:%2e", "repo:%2e%2e",
     "repo:%2e%2E/x", "repo:docs/%2e%2e/%2e%2e/etc/passwd", "repo:a/..%2fb", "repo:a%2f%2e.", "repo:a/%252e%252e/b",
     "repo:a/.%2e@4f2a", "repo:%2fetc/passwd", "repo:%5cx", "repo:%7e/notes.md", "repo:C%3a/x", "repo:%252fetc",
     "https://a..b/", "https://example.com:0", "https://example.com:99999/", "repo:~/notes.md",
     "repo:~alice/notes.md"],
)  # fmt: skip
def test_a_source_that_only_its_author_opens_is_refused_on_the_laptop_and_counts_for_nothing(uri: str) -> None:
    assert violations_of(Citation(uri=uri)) == [], "what was saved before goes up all the same"
    assert not _cli_memory.openable(uri) and not sources.openable(uri)


def test_the_rule_of_sources_is_one_word_for_word() -> None:
    here, there = (inspect.getsource(each).split('"""', 2)[2] for each in (_sources, sources))
    assert here == there


@given(st.ip_addresses(v=4), st.sampled_from(["", ":80", "/x", "?x", "#x"]))
def test_a_number_opens_where_it_is_of_the_internet(number: IPv4Address, rest: str) -> None:
    opens = number.is_global and not number.is_multicast
    for written in (str(number), str(int(number)), hex(int(number))):
        assert sources.openable(f"https://{written}{rest}") == (opens and written == str(number))


@pytest.mark.parametrize(
    "uri",
    ["repo:../../etc/passwd", "repo:a/../b", "repo:a/..", "repo:..", "repo:..@4f2a", "repo:a/..#L1", "repo:/etc/passwd",
     "repo:C:\\x", "repo:C:/x", "repo:a\\b", "repo:a\u202eb", "repo:", "https://[::1", "https://user:pass@example.com/",
     "https://user@example.com", "https://ex\u202eample.com", "https://example.com/\u202eb", "https://", "https:///x",
     "https://example.com:x/", "https://example.com\\@evil.example", "https://a/ b", "https://a/\u3000", "file:///etc/passwd"],
)  # fmt: skip
def test_a_source_that_is_none_is_refused_by_both(uri: str) -> None:
    assert {each.field for each in violations_of(Citation(uri=uri))} == {"uri"}
    assert not _cli_memory.openable(uri)


def _is_printable(uri: str) -> bool:
    return _cli_memory.NOT_OPENABLE.search(uri) is None


def _is_http(uri: str) -> bool:
    return uri.startswith("http")


@given(st.from_regex(_cli_memory.OPENABLE, fullmatch=True).filter(_is_printable).filter(_is_http))
def test_an_address_that_passes_has_a_host_and_no_user(uri: str) -> None:
    split = urlsplit(uri)
    assert split.hostname and split.username is None and split.password is None
