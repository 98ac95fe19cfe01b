"""Removes credentials from texts that Python writes: log lines, and errors of rows. `redact_personal` also
removes personal data, from texts that are sent to a provider.

The rule is `penstock._redact` in the database, which every stored error goes through. These are the same
patterns for texts that never reach it; a test compares both on the same texts.
"""

from __future__ import annotations

import logging
import re

HIDDEN = "[redacted]"

# Each pattern below needs one of these, in any case. Most lines contain none, and the patterns cost more.
_MARKS = (
    *("://", "key", "token", "secret", "passw", "passphrase", "pwd", "authorization", "cookie", "bearer"),
    *("basic", "credential", "signature", "private", "sk-", "sk_", "rk-", "rk_", "psk_", "psi_", "pss_"),
    *("whsec_", "eyj", "akia", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "xox", "aiza", "ya29."),
)
# A name, its closing quote, a separator, and the opening quote of its value.
_IS = r"""["'\\]*[ \t]*(?:=>?|:)[ \t]*[\["'\\(]*"""
# Repetitions have an upper limit: a text of a user could otherwise take quadratic time.
_RULES = [
    (re.compile(r"-----BEGIN[^-]*?PRIVATE KEY-----.{0,8000}?-----END[^-]*?-----", re.S), HIDDEN),
    # User and password, and the query string, of a URL or connection string.
    (re.compile(r"""(\w://)[^\s"'\\/@?#:]{0,255}:[^\s"'\\?#]{0,255}@"""), rf"\1{HIDDEN}@"),
    (re.compile(r"""(\w://[^\s"'\\<>?#]{0,1000}[?#])[^\s"'\\<>]+"""), rf"\1{HIDDEN}"),
    (
        re.compile(
            r"((?:proxy-)?authorization|(?:set-)?cookie|x-[a-z-]{0,60}(?:key|token))("
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
    folded = text.casefold()
    if any(mark in folded for mark in _MARKS):
        for pattern, replacement in _RULES:
            text = pattern.sub(replacement, text)
    return text


_EMAIL = re.compile(r"[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63})+")
# Groups of digits as people write a card's number; the checksum decides.
_CARD = re.compile(r"(?<![\w.+-])\d(?:[ -]?\d){12,18}(?![\w-])")
_PHONE = re.compile(
    r"(?<![\w+.-])(?:"
    r"(?:\+|00(?=[1-9]))\d{1,3}[ ./-]?(?:\(\d{1,5}\)[ ./-]?)?\d(?:[ ./-]?\d){5,12}"  # with a country code
    r"|\(\d{2,5}\)[ ./-]?\d{2,4}(?:[ ./-]?\d{2,4}){1,3}"  # (030) 123456
    r"|\d{3}[ .-]\d{3}[ .-]\d{4}"  # 555-867-5309
    r"|0[1-9]\d{1,3}[ /-]\d{3,}(?:[ -]?\d{2,4}){0,3}"  # 030 1234567
    r")(?![\w-])"
)
# A long word of letters and digits is a credential, not language.
_KEY = re.compile(r"\b(?=\w*\d)(?=\w*[A-Za-z])[A-Za-z0-9_]{32,}\b", re.A)


_IBAN = re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b")


def redact_personal(text: str) -> str:
    """Replace e-mail addresses, account, card and phone numbers, and credentials, before a text leaves."""
    text = _KEY.sub(HIDDEN, redact(text))
    text = _EMAIL.sub("[email]", text)
    text = _IBAN.sub(lambda found: "[account]" if _is_iban(found[0]) else found[0], text)
    text = _CARD.sub(lambda found: "[card]" if _has_checksum(found[0]) else found[0], text)
    return _PHONE.sub("[phone]", text)


def _is_iban(text: str) -> bool:
    plain = text.replace(" ", "")
    digits = "".join(str(int(letter, 36)) for letter in plain[4:] + plain[:4])
    return 15 <= len(plain) <= 34 and int(digits) % 97 == 1


def _has_checksum(number: str) -> bool:
    """Whether the digits pass the Luhn check, as every card number does."""
    digits = [int(each) for each in number if each.isdigit()][::-1]
    doubled = (sum(divmod(2 * digit, 10)) for digit in digits[1::2])
    return (sum(digits[::2]) + sum(doubled)) % 10 == 0


class RedactingFormatter(logging.Formatter):
    """Formats log lines, with their stack traces, and removes credentials from the whole line."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))
