"""Personal data that has a shape of its own: presidio's pattern recognizers, offline and called by themselves.

Neither its engine nor its models run, so nothing is said about names of people. It costs half a millisecond for a short
text with a hint, a second for the longest text of nothing but digits, and seconds to load: a bank asks for it, and it runs in
worker threads.
"""

import ipaddress
import threading
from collections.abc import Sequence
from typing import Any

import re2

from kit.barrier import Passed, Span, settle, spans_as_drawn

# An address as RFC 5321 bounds it; presidio's own pattern runs for a minute over 10,000 characters of `a.a.a.`.
_EMAIL = r"\b[\w!#$%&'*+/=?^`{|}~.-]{1,64}@(?:[\w-]{1,63}\.){1,8}[\w-]{2,63}\b"
_NO_DOMAINS = frozenset(
    "service socket timer target mount slice scope device json yaml yml toml txt html png svg jpg".split()
)
"""What ends units of systemd and files, which hold an @ as well: getty@tty1.service."""
_REGIONS = ("US", "GB", "DE", "FR")
"""Whose national forms of phone numbers are known; the international form is known of all."""
_KINDS = {
    "EMAIL_ADDRESS": "EMAIL",
    "PHONE_NUMBER": "PHONE",
    "CREDIT_CARD": "CREDIT CARD",
    "IBAN_CODE": "IBAN",
    "IP_ADDRESS": "IP ADDRESS",
}
_NATIONAL = (
    "DeSocialSecurityRecognizer", "EsNieRecognizer", "EsNifRecognizer", "FiPersonalIdentityCodeRecognizer",
    "KrRrnRecognizer", "SePersonnummerRecognizer", "TrNationalIdRecognizer", "ZaIdNumberRecognizer",
)  # fmt: skip
"""Ids with a checksum that at most one in eighty numbers of their length fits; of others every tenth counter would be one."""

# What may be a digit to one of the libraries: any but the letters of Europe's west, punctuation, arrows and drawings.
_D = r"[0-9\x{250}-\x{1FFF}\x{2C00}-\x{10FFFF}]"
# Without case the long s and the Kelvin sign are letters of ASCII too.
_L = r"A-Za-z\x{17F}\x{212A}"
_HINTS = {
    "EmailRecognizer": "@",
    # Four digits with anything between them that may stand within a number: an x may.
    "PhoneRecognizer": rf"{_D}(?:[^0-9A-WYZa-wyz]*{_D}){{3}}",
    "CreditCardRecognizer": rf"(?:{_D}[- ]?){{13}}",
    "IbanRecognizer": "[A-Z]{2}[0-9]{2}[ -]?[A-Z0-9]{4}",
    "IpRecognizer": r"[0-9]\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]|::|(?:[0-9A-Fa-f]{1,4}:){6}",
    "DeSocialSecurityRecognizer": rf"{_D}{{8}}",
    "EsNieRecognizer": rf"[0-9]{{7}}-?[{_L}]",
    "EsNifRecognizer": rf"[0-9]{{7}}-?[{_L}]",
    "FiPersonalIdentityCodeRecognizer": rf"{_D}{{6}}[-+A-Za-z]{_D}{{3}}",
    "ItFiscalCodeRecognizer": rf"(?:{_D}|[{_L}]){{16}}",
    "KrRrnRecognizer": rf"{_D}{{6}}-?{_D}{{7}}",
    "SePersonnummerRecognizer": rf"{_D}{{6}}[-+]?{_D}{{4}}",
    "TrNationalIdRecognizer": "[0-9]{11}",
    "ZaIdNumberRecognizer": rf"{_D}{{13}}",
}
"""By recognizer what all that it finds holds. Nearly every text is done with after one pass of RE2 over all of them."""


class PersonalData:
    """`redact` rewrites what it finds, `reject` leaves the decision to the caller by `found`, `off` looks at nothing."""

    def __init__(self, action: str) -> None:
        self.action = action

    def check(self, text: str) -> Passed:
        """Looks at one text. Blocks: the first call loads the recognizers."""
        if self.action == "off":
            return Passed(text, ())
        recognizers, hints = _loaded()

        def find(shown: str) -> list[Span]:
            return _spans(shown, [recognizers[place] for place in sorted(hints.Match(shown) or ())])

        return settle(text, spans_as_drawn(text, find), self.action)


def _spans(text: str, recognizers: Sequence[Any]) -> list[Span]:
    """What these find."""
    spans = []
    for recognizer in recognizers:
        for found in recognizer.analyze(text, recognizer.supported_entities, None) or ():
            kind = _KINDS.get(found.entity_type, "NATIONAL ID")
            if _counts(kind, text[found.start : found.end]):
                spans.append(Span(found.start, found.end, kind))
    return spans


def _is_private_domain(domain: str) -> bool:
    """Whether this may be a domain of a network's own, such as intern.corp; a version or a picture's size is none."""
    *_, name, last = domain.lower().split(".")
    return name[:1].isalpha() and last not in _NO_DOMAINS and (last.isalpha() or last.startswith("xn--"))


def _counts(kind: str, words: str) -> bool:
    """Whether a find is one: a bare run of digits is no phone number, and this machine's address is nobody's."""
    if kind == "PHONE":
        return not words.isdigit()
    if kind == "IP ADDRESS":
        try:
            address = ipaddress.ip_address(words)
        except ValueError:
            return True
        return not (address.is_loopback or address.is_unspecified)
    return True


_loading = threading.Lock()
_recognizers: tuple[Sequence[Any], Any] | None = None


def _loaded() -> tuple[Sequence[Any], Any]:
    """The recognizers, and their hints in the same order."""
    global _recognizers
    with _loading:
        if _recognizers is None:
            found, hints = _load(), re2.Set.SearchSet()
            for recognizer in found:
                hints.Add(_HINTS[type(recognizer).__name__])
            hints.Compile()
            _recognizers = found, hints
    return _recognizers


def _load() -> Sequence[Any]:
    # Here, so that whoever needs none of it does not pay for it.
    import presidio_analyzer.predefined_recognizers as known
    import tldextract
    from presidio_analyzer import Pattern

    # The list that comes with it: by itself it fetches a newer one and keeps it in the home directory.
    suffixes = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)

    class EmailRecognizer(known.EmailRecognizer):
        """Addresses below a public suffix, or in a domain of a network's own."""

        def validate_result(self, pattern_text: str) -> bool:
            """Whether the domain is one."""
            return suffixes(pattern_text).fqdn != "" or _is_private_domain(pattern_text.rpartition("@")[2])

    class ItFiscalCodeRecognizer(known.ItFiscalCodeRecognizer):
        """Its own check looks letters up in a table and fails at one that is an S or a K only without case."""

        def validate_result(self, pattern_text: str) -> bool | None:
            """Whether the check letter fits."""
            return super().validate_result(pattern_text) if pattern_text.isascii() else False

    return (
        EmailRecognizer(patterns=[Pattern("e-mail", _EMAIL, 0.5)]),
        known.PhoneRecognizer(supported_regions=_REGIONS),
        known.CreditCardRecognizer(),
        known.IbanRecognizer(),
        known.IpRecognizer(),
        ItFiscalCodeRecognizer(),
        *(getattr(known, name)() for name in _NATIONAL),
    )
