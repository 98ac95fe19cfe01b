"""Removes credentials from texts that Python writes: log lines, and errors of rows.

The rule is `penstock._redact` in the database, which every stored error goes through. These are the same
patterns for texts that never reach it; a test compares both on the same texts.
"""

from __future__ import annotations

import logging
import re

HIDDEN = "[redacted]"

# Most lines contain none of this, and the patterns below cost more.
_SUSPECT = re.compile(
    r"://|key|token|secret|passw|pwd|auth|cookie|bearer|basic |credential|signature|sk[-_]"
    r"|ps[ski]_|whsec_|eyJ|AKIA|gh[pousr]_|github_pat_|xox|AIza|ya29|private",
    re.I,
)
# A name, its closing quote, a separator, and the opening quote of its value.
_IS = r"""["'\\]*[ \t]*(?:=>?|:)[ \t]*[\["'\\(]*"""
_RULES = [
    (re.compile(r"-----BEGIN[^-]*?PRIVATE KEY-----.*?-----END[^-]*?-----", re.S), HIDDEN),
    # User and password, and the query string, of a URL or connection string.
    (re.compile(r"""(\w://)[^\s"'\\/@?#:]*:[^\s"'\\?#]*@"""), rf"\1{HIDDEN}@"),
    (re.compile(r"""(\w://[^\s"'\\<>?#]*[?#])[^\s"'\\<>]+"""), rf"\1{HIDDEN}"),
    (
        re.compile(
            r"((?:proxy-)?authorization|(?:set-)?cookie|x-[a-z-]*(?:key|token))("
            + _IS
            + r""")[^"'\\\r\n,}]+""",
            re.I,
        ),
        rf"\1\2{HIDDEN}",
    ),
    (re.compile(r"\b(bearer|basic)([ \t]+)[\w.~+/=-]{8,}", re.I), rf"\1\2{HIDDEN}"),
    (
        re.compile(
            r"(passw(?:or)?d|passphrase|pwd|secret|token|credentials?|signature|"
            r"(?:api|access|private|secret|signing|encryption|account|storage|auth)[_-]?key)("
            + _IS
            + r")(?!\[redacted|[:=[{]|true\b|false\b|null\b|None\b|[0-9.]+(?<=\w)(?!\w))"
            + r"""[^\s"'\\,;&)}\]<>]+""",
            re.I,
        ),
        rf"\1\2{HIDDEN}",
    ),
    # Credentials that their form gives away, whatever stands before them.
    (
        re.compile(
            r"\b(?:ps[kis]_[0-9a-f]{16,}|[sr]k[-_][\w-]{12,}|whsec_[\w+/=-]{12,}|AKIA[0-9A-Z]{16}"
            r"|gh[pousr]_\w{20,}|github_pat_\w{20,}|xox[a-z]-[\w-]{10,}|AIza[\w-]{30,}|ya29\.[\w-]{10,}"
            r"|eyJ[\w-]{5,}\.[\w-]{5,}(?:\.[\w-]*)?)"
        ),
        HIDDEN,
    ),
]


def redact(text: str) -> str:
    """Replace credentials by `[redacted]`. A JSON document stays one: no pattern takes a quote."""
    if _SUSPECT.search(text):
        for pattern, replacement in _RULES:
            text = pattern.sub(replacement, text)
    return text


class RedactingFormatter(logging.Formatter):
    """Formats log lines, with their stack traces, and removes credentials from the whole line."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))
