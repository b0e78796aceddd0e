"""The barrier before the store: finds secrets in a text and rewrites, refuses or lets pass.

The shapes are those of detect-secrets' detectors, searched by our own loop: its scanner gives back groups instead of
whole matches, so that a redaction would leave most of a token standing; it obeys `pragma: allowlist` comments, which
anyone can write; and its keyword detector backtracks for seconds on a short text. The last three have shapes of ours.
"""

import re
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
_WORD = r"(?:password|passwd|api_?key|secret|token)"
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
        rf"\b{_WORD}\w{{0,32}}[ \t]{{0,4}}[:=][ \t]{{0,4}}[\"']?(?P<value>[^\s\"']{{6,200}})", re.I
    ),
}
NEVER_FORWARDED = frozenset({"api_key", "password", "token", "secret"})


@dataclass(frozen=True)
class Passed:
    """A text after the barrier, and the kinds of secrets that were found in it."""

    text: str
    found: tuple[str, ...]


def _patterns() -> list[tuple[str, re.Pattern[str]]]:
    detectors: dict[str, Any] = get_mapping_from_secret_type_to_class()
    shapes = [
        (kind, re.compile(pattern))
        for kind, detector in detectors.items()
        if detector.__name__ in _DETECTORS
        for pattern in detector.denylist
    ]
    return [*_OWN.items(), *shapes]


class Barrier:
    """`redact` rewrites what it finds, `reject` leaves the decision to the caller by `found`, `off` looks at nothing."""

    def __init__(self, action: str) -> None:
        self.action = action
        self._patterns = [] if action == "off" else _patterns()

    def check(self, text: str) -> Passed:
        """Looks at one text; time grows with its length alone."""
        spans: list[tuple[int, int, str]] = []
        for kind, pattern in self._patterns:
            for match in pattern.finditer(text):
                # A keyword and a user name may stay; everything else of a match is the secret.
                part: str | int = (
                    "value" if "value" in pattern.groupindex else 1 if kind == "Basic Auth Credentials" else 0
                )
                spans.append((*match.span(part), kind))
        if not spans:
            return Passed(text, ())
        found = tuple(sorted({kind for _, _, kind in spans}))
        if self.action != "redact":
            return Passed(text, found)
        pieces, end = [], 0
        for start, stop, kind in sorted(spans, key=lambda span: (span[0], -span[1])):
            if start >= end:
                pieces += [text[end:start], f"[redacted: {kind}]"]
            end = max(end, stop)
        return Passed("".join(pieces) + text[end:], found)
