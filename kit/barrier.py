"""The barrier before the store: finds secrets in a text and rewrites, refuses or lets pass.

The shapes are those of detect-secrets' detectors, searched by our own loop: its scanner gives back groups instead of
whole matches, so that a redaction would leave most of a token standing; it obeys `pragma: allowlist` comments, which
anyone can write; and its keyword detector backtracks for seconds on a short text. The last three have shapes of ours.

Nearly every text holds no secret, and 35 searches would only tell so. Each kind therefore has a hint, without which none
of its patterns can match, and RE2 looks for all of them in one pass.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import re2
from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class

from kit.named_secrets import HINT, NAMED, is_count
from kit.texts import ODD, as_drawn

# Detectors of things with a shape of their own; those that guess by entropy flag ordinary prose.
_DETECTORS = (
    "ArtifactoryDetector", "AWSKeyDetector", "AzureStorageKeyDetector", "BasicAuthDetector", "DiscordBotTokenDetector",
    "GitHubTokenDetector", "GitLabTokenDetector", "MailchimpDetector", "PypiTokenDetector",
    "SendGridDetector", "SlackDetector", "SquareOAuthDetector", "StripeDetector", "TelegramBotTokenDetector",
    "TwilioKeyDetector",
)  # fmt: skip
_OWN = {
    "Private Key": re.compile(
        r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)"
        r"|PuTTY-User-Key-File-.*?(?:Private-MAC: *\w*|\Z)",
        re.S,
    ),
    "JSON Web Token": re.compile(r"\beyJ[A-Za-z0-9_=-]{8,2000}\.[A-Za-z0-9_=-]{4,}(?:\.[A-Za-z0-9_.+/=-]*)?"),
    "GitHub Token": re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,})"),
    "GitLab Token": re.compile(r"\b(?:glpat|gldt|glrt|glptt|glft|gloas)-[A-Za-z0-9_-]{16,}"),
    "NPM Token": re.compile(r"\bnpm_[A-Za-z0-9]{30,}"),
    "OpenAI Token": re.compile(r"\bsk-[A-Za-z0-9_-]{20,200}"),
    "Teamlore Token": re.compile(r"\btlk_[A-Za-z0-9_-]{43}"),
    "Google Token": re.compile(r"\b(?:AIza[A-Za-z0-9_-]{30,}|ya29\.[A-Za-z0-9_-]{20,}|GOCSPX-[A-Za-z0-9_-]{20,})"),
    "Service Token": re.compile(
        r"\b(?:hf_|dckr_pat_|shpat_|dop_v1_|glsa_|lin_api_|hvs\.|whsec_|AGE-SECRET-KEY-1)[A-Za-z0-9_-]{20,}"
    ),
    "Bearer Token": re.compile(r"\b[Bb]earer[ \t]{1,4}(?P<value>[A-Za-z0-9._~+/=-]{16,})"),
    "Authorization Header": re.compile(
        r"(?i:authorization)[^0-9A-Za-z\n]{0,40}[:=][^0-9A-Za-z\n]{0,40}(?i:basic|bearer|token|digest|apikey)[ \t]{1,4}"
        r"(?P<value>(?=[^\s]{0,199}[0-9=])[^\s\"'`\\,;&<]{6,})"
    ),
    # A user may be left out, and a secret may hold an @: it ends at the last one before the path.
    "Basic Auth Credentials": re.compile(r"://[^\s/?#\"'<>:]{0,200}:(?P<value>(?:[^\s/?#\"'<>]|(?<=\w)'(?=\w)){1,1000})@"),
}
_HINTS = {
    "Private Key": "-----BEGIN |PuTTY-User-Key-File-",
    "JSON Web Token": "eyJ",
    "GitHub Token": "gh[pousr]_|github_pat_",
    "GitLab Token": "gl(?:pat|dt|rt|ptt|ft|oas|soat|cbt|imt|agent)-|GR1348941",
    "NPM Token": "npm_",
    "OpenAI Token": "sk-",
    "Teamlore Token": "tlk_",
    "Secret Keyword": HINT,
    "Google Token": r"AIza|ya29\.|GOCSPX-",
    "Service Token": r"hf_|dckr_pat_|shpat_|dop_v1_|glsa_|lin_api_|hvs\.|whsec_|AGE-SECRET-KEY-1",
    "Authorization Header": r"(?i:authorization)[^0-9A-Za-z]*[:=]",
    "Bearer Token": "earer",
    "Artifactory Credentials": r"A(?:KC|P.)[a-zA-Z0-9]{8}",
    "AWS Access Key": "(?i:a3t|abia|acca|akia|asia|aws)",
    "Azure Storage Account access key": "AccountKey=",
    "Basic Auth Credentials": "://[^@]*@",
    "Discord Bot Token": r"\.[^.]{6}\.",
    "Mailchimp Access Key": "-us",
    "PyPI Token": "pypi-AgE",
    "SendGrid API Key": r"SG\.",
    "Slack Token": r"(?i:xox|hooks\.slack\.com)",
    "Square OAuth Secret": "sq0csp-",
    "Stripe Access Key": "k_live_",
    "Telegram Bot Token": ":[0-9A-Za-z_-]{35}",
    "Twilio API Key": "AC|SK",
}
"""By kind what every match of its patterns holds. Looser than the patterns where the two libraries differ (`\\d` and `\\w`
are ASCII to RE2, Unicode to `re`), and no counted repeat of theirs can be under way twice: that would cost time."""
# What would end a quoted value too early, as many characters of it.
_FLAT = str.maketrans('"\\\n\r', "'   ")
_MARK = re.compile(r"\[redacted: (?P<kind>[A-Za-z ]{1,40})\]")
NEVER_FORWARDED = frozenset({"api_key", "password", "token", "secret"})


class Passed(NamedTuple):
    """A text after the barrier, and the kinds of what was found in it."""

    text: str
    found: tuple[str, ...]


@dataclass(frozen=True)
class Span:
    """Where a secret of a kind stands."""

    start: int
    stop: int
    kind: str


@dataclass(frozen=True)
class Shape:
    """A kind of secrets: its patterns, and what every match of one of them holds."""

    kind: str
    patterns: tuple[re.Pattern[str], ...]
    hint: str

    def spans(self, text: str) -> Iterator[Span]:
        """What all its patterns find. A keyword and a user name may stay; everything else of a match is the secret."""
        for pattern in self.patterns:
            for match in pattern.finditer(text):
                part: str | int = match.lastgroup or int(self.kind == "Basic Auth Credentials")
                start, stop = match.span(part)
                if self.kind == "Secret Keyword" and is_count(text[match.start() : start], text[start:stop]):
                    continue
                mark = _MARK.match(text, start)
                if mark is None or mark.end() < stop:  # else the secret was taken out before
                    yield Span(start, stop, self.kind)


@cache
def shapes() -> tuple[Shape, ...]:
    """Every kind that is looked for."""
    detectors: dict[str, Any] = get_mapping_from_secret_type_to_class()
    patterns = {kind: [pattern] for kind, pattern in _OWN.items()}
    patterns["Secret Keyword"] = list(NAMED)
    for kind, detector in detectors.items():
        if detector.__name__ in _DETECTORS:
            patterns.setdefault(kind, []).extend(re.compile(pattern) for pattern in detector.denylist)
    return tuple(Shape(kind, tuple(found), _HINTS[kind]) for kind, found in patterns.items())


@cache
def _hints() -> Any:
    """All hints, to be looked for in one pass; gives the places of those in `shapes()`, and the next one for an odd text."""
    hints = re2.Set.SearchSet()
    for shape in shapes():
        hints.Add(shape.hint)
    hints.Add(ODD)
    hints.Compile()
    return hints


def _hinted(text: str) -> list[int]:
    """The places in `shapes()` of those kinds that a text may hold, and the next one if it looks other than it is."""
    # To a pattern of `re` without case these two are an i as well, to RE2 they are not.
    folded = text if text.isascii() else text.replace("\u0130", "i").replace("\u0131", "i")
    return sorted(_hints().Match(folded) or ())


def _found(text: str, places: Sequence[int] | None = None) -> list[Span]:
    """Where secrets of these places, or of those that are hinted at, stand in a text as it is."""
    kinds = shapes()
    hinted = _hinted(text) if places is None else places
    return [span for place in hinted if place < len(kinds) for span in kinds[place].spans(text)]


class Barrier:
    """`redact` rewrites what it finds, `reject` leaves the decision to the caller by `found`, `off` looks at nothing."""

    def __init__(self, action: str) -> None:
        self.action = action
        if action != "off":
            _hints()  # now, so that no push waits for the detectors to be loaded

    def spans(self, text: str) -> Sequence[Span]:
        """Where secrets stand in a text; time grows with its length alone."""
        if self.action == "off":
            return ()
        places = _hinted(text)
        if not places:
            return ()
        return spans_as_drawn(text, _found) if places[-1] == len(shapes()) else _found(text, places)

    def check(self, text: str) -> Passed:
        """Looks at one text."""
        return settle(text, self.spans(text), self.action)

    def check_value(self, key: str, value: str) -> Passed:
        """Looks at a value alone and as `key: "value"`; of one that its key makes a secret nothing stays."""
        if self.action == "off":
            return Passed(value, ())
        label = f'{key.strip()}: "'
        at, end = len(label), len(label) + len(value)
        quoted = f'{label}{value.translate(_FLAT)}"'
        if not _hinted(quoted + value):
            return Passed(value, ())
        spans = self.spans(value)
        together = {
            Span(max(span.start - at, 0), min(span.stop, end) - at, span.kind)
            for span in self.spans(quoted)
            if span.stop > at
        }
        by_key = {span.kind for span in together.difference(spans)}
        return settle(value, [*(Span(0, len(value), kind) for kind in sorted(by_key)), *spans], self.action)


def spans_as_drawn(text: str, find: Callable[[str], Iterable[Span]]) -> list[Span]:
    """What is found in a text, and in it as it looks: what came by way of a web page is no less a secret."""
    spans = list(find(text))
    if (drawn := as_drawn(text)) is not None:
        shown, places = drawn
        spans += [Span(places[span.start], places[span.stop - 1] + 1, span.kind) for span in find(shown)]
    return spans


def redacted_kinds(text: str) -> set[str]:
    """The kinds of what was taken out of a text, as it says itself."""
    return {mark["kind"] for mark in _MARK.finditer(text)}


def settle(text: str, spans: Sequence[Span], action: str) -> Passed:
    """The text with what was found in it, rewritten where the action is `redact`."""
    if not spans:
        return Passed(text, ())
    found = tuple(sorted({span.kind for span in spans}))
    if action != "redact":
        return Passed(text, found)
    pieces, end = [], 0
    for span in sorted(spans, key=lambda span: (span.start, -span.stop)):
        if span.start >= end:
            pieces += [text[end : span.start], f"[redacted: {span.kind}]"]
        end = max(end, span.stop)
    return Passed("".join(pieces) + text[end:], found)
