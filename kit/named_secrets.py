"""Patterns of what stands behind the name of a secret, in the forms in which people, agents and their tools write it.

A name and a value of any form are not enough for a weak separator, as a table's or an arrow's: prose uses those, too. What
stands behind one has to hold more than letters and to end its line, cell or clause. Every repeat is bounded, or ends its
pattern, so that no text makes one slow.
"""

import re

_BLANKS = r"[ \t]{0,40}"
_KEY_OF = "signing|private|encryption|decryption|crypto|cipher|master|shared|hmac|jwt|auth|license|account|api|access|secret"
_FOLDER = rf"""\w{{0,32}}["']?{_BLANKS}(?:=>|:=|[:=]){_BLANKS}["']?[/~.$]"""
# What the name of a secret ends or goes on with: DB_PASSWORD, userPassword, aws_secret_access_key, client-secret.
# Of pwd, which is a folder's name to a shell, only what names none.
WORD = (
    r"(?:password|passwd|passphrase|passcode|passwort|kennwort|secret|token|"
    rf"(?:{_KEY_OF})[_-]?key|(?:db|user|mysql|postgres|pg|root|admin|smtp|redis)_?pass|pwd(?!{_FOLDER}))"
)
KEYWORD = (
    rf"(?i:passw(?:or)?[dt]|passphrase|passcode|kennwort|pwd|secret|token|(?:{_KEY_OF})[_ -]?key|"
    r"(?:db|user|mysql|postgres|pg|root|admin|smtp|redis)_?pass)"
)
"""What every name holds, for RE2."""
# A word that goes on is another one: tokenizer, secretary, PASSWORDLESS; but tokens, secretkey, tokenValue.
_WHOLE = (
    r"(?:(?:[_-]?(?:keys?|values?|base|string|hash|text|id|prod|dev|test))|e?s|e){0,2}"
    r"(?-i:(?![^\W\d_A-Z])(?!(?<=[A-Z])[A-Z]))"
)
_NAME = rf"{WORD}{_WHOLE}\w{{0,32}}"
_TAG = r"</?[a-z][a-z0-9]{0,9}>"
# A quotation mark as HTML, a URL or JSON writes it.
_CODED = r"&(?:quot|apos|#0?3[49]|#x2[27]);|%2[27]|\\{1,4}u002[27]"
_CLOSING = (
    rf"(?:[\\\"'`*~\])}}\u201d\u2019\u201c\u2018\xbb]|{_CODED}|{_TAG}){{0,12}}"
    rf"(?:[ \t]?\([^()\n]{{0,40}}\)(?:{_TAG}){{0,3}})?"
)
_TYPE = r"(?:Optional\[|Final\[|Option<|&)?(?:str|string|SecretStr|bytes|any)[\]>?]?(?:[ ]\|[ ]None)?"
_SEPARATOR = (
    rf"(?:[ \t]{{1,9}}(?:is|ist))?{_BLANKS}"
    rf"(?:[?+!:=]{{0,2}}[:=]>?(?:[ \t]{{0,9}}{_TYPE}[ \t]{{0,9}}=)?"
    rf"|%3[ad]|&(?:colon|equals|#58|#61|#x3[ad]);|\\{{1,4}}u003[ad]"
    rf"|(?:[,;]\s{{0,40}}|\s{{1,40}})[\\\"'`]{{0,8}}value[\\\"'`]{{0,8}}{_BLANKS}[:=])"
    rf"(?:(?:[\"'\u201d]|[*_~`\\]{{1,6}}|{_TAG}){{1,2}}(?=[ \t]))?{_BLANKS}"
)
_WEAK = (
    rf"(?:[ \t]{{0,40}}(?:\|{{1,2}}|[-=~]{{1,3}}>|[\u2192\u21d2\u27a1\u2794\u27f6]){_BLANKS}"
    rf"|[ \t]{{1,40}}[-\u2013\u2014]{{1,2}}[ \t]{{1,40}}"
    rf"|\t{{1,40}}|\s{{0,40}}<(?:td|th|dd)[^<>\n]{{0,80}}>|{_SEPARATOR}\r?\n{_BLANKS}(?:[-*>][ \t]{{1,9}})?)"
)
# A passphrase goes whole. It holds neither of its quotes, so that no text makes the search for the closing one slow.
QUOTED = "|".join(
    rf"{opening}(?P<{name}>(?:[^{opening}{closing}\\\n]|\\.){{6,1000}})[{closing}]"
    for name, opening, closing in (
        ("double", '"', '"'), ("single", "'", "'"), ("grave", "`", "`"), ("curly", "\u201c", "\u201d"),
        ("turned", "\u2018", "\u2019"), ("low", "\u201e", "\u201c\u201d"), ("angle", "\xab", "\xbb"),
    )
)  # fmt: skip
_FENCED = r"(?:(?<![)>]:)\r?\n[ \t]{0,40})?(?P<fence>\"\"\"|'''|```)(?P<fenced>(?:(?!(?P=fence))[\s\S]){6,1000})(?P=fence)"
_ENCLOSED = (
    rf"(?P<opening>{_CODED}|\\{{1,7}}[\"'`]|(?:\"\"|''|``)(?=[^\s\"'`,;:)}}\]])|(?:\*\*|__|~~)(?=\S))"
    r"(?P<enclosed>(?:(?!(?<!\\)(?P=opening))[^\n]){6,1000})(?<!\\)(?P=opening)"
)
_BLOCK = (
    rf"[|>][+-]?[0-9]?[+-]?{_BLANKS}(?:\#[^\n]{{0,200}})?\r?\n(?P<indent>[ \t]{{1,40}})"
    r"(?P<block>\S[^\n]*(?:\n(?P=indent)[^\n]*|\n[ \t]*(?=\n))*)"
)
_OPENING = rf"(?:{_TAG}|{_CODED}){{0,3}}(?:[\\\"'`*~]{{1,8}}(?![\\\"'`*~]))?"
_BARE = rf"{_OPENING}(?:(?:bearer|basic)[ \t]{{1,4}}(?=\S))?(?P<value>(?:[^\s\"'<]|<(?!/)|</(?=\w+>\w)|(?<=\w)[\"'](?=\w)){{6,}})"
_CELL = (
    rf"{_OPENING}(?!\d{{4}}-\d\d-\d\d\b)(?P<cell>(?=[^\s|]{{0,199}}[0-9@#$%^&*+=!])[^\s\"'`$<({{\[/~.|>*\\-][^\s\"'`|<*\\]{{7,399}})"
    rf"(?=(?:{_CODED})?[\\\"'`*~_]{{0,8}}[ \t]{{0,40}}(?:[|\r\n<]|\Z)|[,;.)](?:\s|\Z))"
)
_ELEMENT = r"(?:[ \t][^<>\n]{0,200})?>\s{0,40}(?:<!\[CDATA\[)?(?P<element>[^<>]{6,1000})(?:\]\]>\s{0,40})?</"
NAMED = (
    re.compile(
        rf"{_NAME}{_CLOSING}(?:{_SEPARATOR}(?:{_FENCED}|{_ENCLOSED}|{QUOTED}|{_BLOCK}|{_BARE})|{_ELEMENT}|{_WEAK}{_CELL})", re.I
    ),
    # A name of two words is prose as well.
    re.compile(rf"\b(?:{_KEY_OF})[ ]keys?{_CLOSING}(?:{_SEPARATOR}|{_WEAK}){_CELL.replace('cell', 'spaced')}", re.I),
    # A command's option and its value. Prose goes on behind the name of an option as well, so a bare value has to hold more
    # than letters and punctuation, and stands for no variable, placeholder or path.
    re.compile(
        rf"(?<![\w-])--[\w-]{{0,32}}?{WORD}(?:[_-]key)?[ \t]{{1,40}}"
        rf"(?:{QUOTED}|(?P<value>(?=[^\s\"']{{0,199}}[0-9@#$%^&*+=])[^\s\"'`$<({{\[/~.-][^\s\"']{{5,}}))",
        re.I,
    ),
)
_AFTER = r"[:=|>&<(%\x{2192}\x{21d2}\x{27a1}\x{2794}\x{27f6}\t]|\\[uU]00|[ \t][-\x{2013}\x{2014}]"
HINT = (
    rf"{KEYWORD}[^\s\"'`:=|<>&*~]*(?:[^0-9A-Za-z\n]*[ \t](?i:ist?))?"
    rf"(?:[^0-9A-Za-z\n]*(?:{_AFTER})|[^0-9A-Za-z]*(?:<|(?i:value)))"
    rf"|{KEYWORD}[^<>\n]*>|--\S*{KEYWORD}(?i:[_-]key)?[ \t]"
)
"""What all that these patterns find holds, for RE2."""
_PROPERTIES = (
    "count total limit budget length size ttl usage used window lifetime expiry expires expired expiration second minute hour"
    " day age"
).split()
_COUNTED = re.compile(
    rf"(?<![A-Za-z])(?i:{'|'.join(_PROPERTIES)})s?(?![a-z])"
    rf"|(?<=[a-z])(?:{'|'.join(map(str.capitalize, _PROPERTIES))})s?(?![a-z])"
)
"""Whole words of a name: a password_manager holds no age, a token_message no age either."""
_OF_NAME = re.compile(r"[\w-]*(?: \w+)?")
_AMOUNT = re.compile(r"-?[0-9][0-9,_]*(?:\.[0-9]+)?")
_MEASURE = re.compile(r"-?[0-9][0-9,_]*(?:\.[0-9]+)?(?:[A-Za-z]{1,7}|%)?")


def is_count(name: str, value: str) -> bool:
    """Whether a number is one of secrets or of their properties, and so is none: total_tokens, token_count, token_ttl."""
    value = value.rstrip(".,;)")
    if (own := _OF_NAME.match(name)) and _COUNTED.search(own[0]):
        return _MEASURE.fullmatch(value) is not None
    return "tokens" in name.lower() and _AMOUNT.fullmatch(value) is not None
