"""Personal data that has a shape of its own: presidio's pattern recognizers, offline and called by themselves.

Neither its engine nor its models run, so nothing is said about names of people. It costs milliseconds a text and
seconds to load: a bank asks for it, and it runs in worker threads.
"""

import ipaddress
import re
import threading
from collections.abc import Sequence
from typing import Any

from kit.barrier import Passed, Span, settle

_ANY = re.compile(r"[\d@:]")
"""What every kind has: most texts are done with here."""
# An address as RFC 5321 bounds it; presidio's own pattern runs for a minute over 10,000 characters of `a.a.a.`.
_EMAIL = r"\b[\w!#$%&'*+/=?^`{|}~.-]{1,64}@(?:[\w-]{1,63}\.){1,8}[\w-]{2,63}\b"
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
    "ItFiscalCodeRecognizer", "KrRrnRecognizer", "SePersonnummerRecognizer", "TrNationalIdRecognizer", "ZaIdNumberRecognizer",
)  # fmt: skip
"""Ids with a checksum that at most one in eighty numbers of their length fits; of others every tenth counter would be one."""


class PersonalData:
    """`redact` rewrites what it finds, `reject` leaves the decision to the caller by `found`, `off` looks at nothing."""

    def __init__(self, action: str) -> None:
        self.action = action

    def check(self, text: str) -> Passed:
        """Looks at one text. Blocks: the first call loads the recognizers."""
        if self.action == "off" or _ANY.search(text) is None:
            return Passed(text, ())
        spans = []
        for recognizer in _loaded():
            for found in recognizer.analyze(text, recognizer.supported_entities, None) or ():
                kind = _KINDS.get(found.entity_type, "NATIONAL ID")
                if _counts(kind, text[found.start : found.end]):
                    spans.append(Span(found.start, found.end, kind))
        return settle(text, spans, self.action)


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
_recognizers: Sequence[Any] = ()


def _loaded() -> Sequence[Any]:
    global _recognizers
    with _loading:
        if not _recognizers:
            _recognizers = _load()
    return _recognizers


def _load() -> Sequence[Any]:
    # Here, so that whoever needs none of it does not pay for it.
    import presidio_analyzer.predefined_recognizers as known
    import tldextract
    from presidio_analyzer import Pattern

    # The list that comes with it: by itself it fetches a newer one and keeps it in the home directory.
    suffixes = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)

    class Email(known.EmailRecognizer):
        """Addresses below a public suffix."""

        def validate_result(self, pattern_text: str) -> bool:
            """Whether the domain is one."""
            return suffixes(pattern_text).fqdn != ""

    return (
        Email(patterns=[Pattern("e-mail", _EMAIL, 0.5)]),
        known.PhoneRecognizer(supported_regions=_REGIONS),
        known.CreditCardRecognizer(),
        known.IbanRecognizer(),
        known.IpRecognizer(),
        *(getattr(known, name)() for name in _NATIONAL),
    )
