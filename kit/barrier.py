"""The barrier before the store: finds secrets in a text and rewrites, refuses or lets pass.

The shapes are those of detect-secrets' detectors, searched by our own loop: its scanner gives back groups instead of
whole matches, so that a redaction would leave most of a token standing; it obeys `pragma: allowlist` comments, which
anyone can write; and its keyword detector backtracks for seconds on a short text. The last three have shapes of ours.

Nearly every text holds no secret, and 35 searches would only tell so. Each kind therefore has needles: pieces of text
without which none of its patterns can match, looked for by `in`, which is a hundred times as fast.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class

# Detectors of things with a shape of their own; those that guess by entropy flag ordinary prose.
_DETECTORS = (
    "ArtifactoryDetector", "AWSKeyDetector", "AzureStorageKeyDetector", "BasicAuthDetector", "DiscordBotTokenDetector",
    "GitHubTokenDetector", "GitLabTokenDetector", "MailchimpDetector", "PypiTokenDetector",
    "SendGridDetector", "SlackDetector", "SquareOAuthDetector", "StripeDetector", "TelegramBotTokenDetector",
    "TwilioKeyDetector",
)  # fmt: skip
# What the name of a secret ends or goes on with: DB_PASSWORD, userPassword, aws_secret_access_key, client-secret.
_WORD = r"(?:password|passwd|passphrase|api[_-]?key|access[_-]?key|secret|token)"
_OWN = {
    "Private Key": re.compile(
        r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)", re.S
    ),
    "JSON Web Token": re.compile(r"\beyJ[A-Za-z0-9_=-]{8,2000}\.[A-Za-z0-9_=-]{4,}(?:\.[A-Za-z0-9_.+/=-]*)?"),
    "GitHub Token": re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,})"),
    "GitLab Token": re.compile(r"\b(?:glpat|gldt|glrt|glptt|glft|gloas)-[A-Za-z0-9_-]{16,}"),
    "NPM Token": re.compile(r"\bnpm_[A-Za-z0-9]{30,}"),
    "OpenAI Token": re.compile(r"\bsk-[A-Za-z0-9_-]{20,200}"),
    "Teamlore Token": re.compile(r"\btlk_[A-Za-z0-9_-]{43}"),
    # Bounded on both sides, so that no text makes it slow.
    "Secret Keyword": re.compile(
        rf"{_WORD}\w{{0,32}}[\"']?[ \t]{{0,4}}[:=][ \t]{{0,4}}[\"']?(?P<value>[^\s\"']{{6,200}})", re.I
    ),
    "Bearer Token": re.compile(r"\b[Bb]earer[ \t]{1,4}(?P<value>[A-Za-z0-9._~+/=-]{16,2000})"),
}
_NEEDLES: dict[str, tuple[tuple[str, ...], ...]] = {
    "Private Key": (("-----BEGIN ",),),
    "JSON Web Token": (("eyJ",),),
    "NPM Token": (("npm_",),),
    "OpenAI Token": (("sk-",),),
    "Teamlore Token": (("tlk_",),),
    "Secret Keyword": ((":", "="),),
    "Bearer Token": (("earer",),),
    "Artifactory Credentials": (("AKC", "AP"),),
    "AWS Access Key": (("a3t", "abia", "acca", "akia", "asia", "aws"),),
    "Azure Storage Account access key": (("AccountKey=",),),
    "Basic Auth Credentials": (("://",), ("@",)),
    "Mailchimp Access Key": (("-us",),),
    "PyPI Token": (("pypi-AgE",),),
    "SendGrid API Key": (("SG.",),),
    "Slack Token": (("xox", "hooks.slack.com"),),
    "Square OAuth Secret": (("sq0csp-",),),
    "Stripe Access Key": (("k_live_",),),
    "Twilio API Key": (("AC", "SK"),),
}  # fmt: skip
"""Of each group one must occur; in lower case for a kind that has a pattern without case."""
_ASSIGNED = r"\w{0,32}[\"']?[ \t]{0,4}[:=]"
_HINTS: dict[str, tuple[re.Pattern[str], ...]] = {
    kind: tuple(re.compile(hint) for hint in hints)
    for kind, hints in {
        "GitHub Token": (r"gh[pousr]_", r"github_pat_"),
        "GitLab Token": (r"gl(?:pat|dt|rt|ptt|ft|oas|soat|cbt|imt|agent)-", r"GR1348941"),
        "OpenAI Token": (r"sk-[A-Za-z0-9_-]{20}",),
        "Secret Keyword": tuple(
            word + _ASSIGNED
            for word in ("passw(?:or)?d", "passphrase", "api[_-]?key", "access[_-]?key", "secret", "token")
        ),
        "Artifactory Credentials": (r"A(?:KC|P[\dA-F])[a-zA-Z0-9]{8}",),
        "Discord Bot Token": (r"\.[a-zA-Z\d_-]{6}\.",),
        "Mailchimp Access Key": (r"-us[0-9]",),
        "Telegram Bot Token": (r":[0-9A-Za-z_-]{35}",),
    }.items()
}
"""Where needles would be many or common: parts of the kind's patterns one of which must match as well. Each begins with a letter
that stands for itself, which is what makes a search fast."""
NEVER_FORWARDED = frozenset({"api_key", "password", "token", "secret"})


@dataclass(frozen=True)
class Passed:
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
    """A kind of secrets: its patterns, and what a text must hold for any of them to match."""

    kind: str
    patterns: tuple[re.Pattern[str], ...]
    needles: tuple[tuple[str, ...], ...] = ()
    hints: tuple[re.Pattern[str], ...] = ()
    folded: bool = False
    """Whether needles and hints are those of the text in lower case."""

    def possible(self, text: str) -> bool:
        """Whether any pattern can match; `text` is in lower case for a folded shape."""
        for group in self.needles:
            for needle in group:
                if needle in text:
                    break
            else:
                return False
        return not self.hints or any(hint.search(text) for hint in self.hints)

    def spans(self, text: str) -> Iterator[Span]:
        """What all its patterns find. A keyword and a user name may stay; everything else of a match is the secret."""
        for pattern in self.patterns:
            for match in pattern.finditer(text):
                part: str | int = (
                    "value" if "value" in pattern.groupindex else int(self.kind == "Basic Auth Credentials")
                )
                yield Span(*match.span(part), self.kind)


def shapes() -> tuple[Shape, ...]:
    """Every kind that is looked for."""
    detectors: dict[str, Any] = get_mapping_from_secret_type_to_class()
    patterns = {kind: [pattern] for kind, pattern in _OWN.items()}
    for kind, detector in detectors.items():
        if detector.__name__ in _DETECTORS:
            patterns.setdefault(kind, []).extend(re.compile(pattern) for pattern in detector.denylist)
    return tuple(
        Shape(
            kind,
            tuple(found),
            _NEEDLES.get(kind, ()),
            _HINTS.get(kind, ()),
            any(pattern.flags & re.IGNORECASE for pattern in found),
        )
        for kind, found in patterns.items()
    )


def fold(text: str) -> str:
    """The text in lower case, as a pattern without case sees it: to such a pattern four other letters are i, s and k."""
    if not text.isascii():
        text = (
            text.replace("\u0130", "i").replace("\u0131", "i").replace("\u017f", "s").replace("\u212a", "k")
        )
    return text.lower()


class Barrier:
    """`redact` rewrites what it finds, `reject` leaves the decision to the caller by `found`, `off` looks at nothing."""

    def __init__(self, action: str) -> None:
        self.action = action
        self._shapes = () if action == "off" else shapes()

    def spans(self, text: str) -> Sequence[Span]:
        """Where secrets stand in a text; time grows with its length alone."""
        if not self._shapes:
            return ()
        lower = fold(text)
        return [
            span
            for shape in self._shapes
            if shape.possible(lower if shape.folded else text)
            for span in shape.spans(text)
        ]

    def check(self, text: str) -> Passed:
        """Looks at one text."""
        return settle(text, self.spans(text), self.action)


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
