"""One e-mail over SMTP."""

from __future__ import annotations

from dataclasses import dataclass
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import parseaddr
from html import escape
from typing import Literal
from urllib.parse import parse_qs, unquote, urlsplit

import aiosmtplib

from penstock.delivery.outcome import SENT, Outcome
from penstock.errors import Invalid
from penstock.types import TakenNotification

_TIMEOUT_SECONDS = 20.0
_PORTS = {"starttls": 587, "tls": 465, "none": 25}


@dataclass(frozen=True, slots=True)
class MailServer:
    """Where e-mail is handed over, and from which address."""

    host: str
    port: int
    security: Literal["starttls", "tls", "none"]
    user: str | None
    password: str | None
    sender: str


def server(url: str, sender: str) -> MailServer:
    """Read `smtp://user:password@host:port?tls=starttls|tls|none`."""
    parts = urlsplit(url)
    security = parse_qs(parts.query).get("tls", ["starttls"])[-1]
    if parts.scheme != "smtp" or not parts.hostname or security not in _PORTS:
        raise Invalid(
            "PENSTOCK_SMTP_URL must look like smtp://user:password@host:587?tls=starttls",
            hint="tls is starttls, tls or none.",
        )
    if "@" not in parseaddr(sender)[1]:
        raise Invalid(f"PENSTOCK_MAIL_FROM must be an e-mail address (got {sender!r})")
    user = unquote(parts.username) if parts.username else None
    password = unquote(parts.password) if parts.password else None
    port = parts.port or _PORTS[security]
    return MailServer(parts.hostname, port, security, user, password, sender)  # pyright: ignore[reportArgumentType]


def message(notification: TakenNotification, sender: str) -> EmailMessage:
    """The message. Its id stays the same when it is sent again, so that mail programs show it once."""
    made = EmailMessage()
    made["From"] = sender
    made["To"] = Address(addr_spec=notification.address)
    made["Subject"] = " ".join(notification.subject.split())
    made["Date"] = notification.created_at
    made["Message-ID"] = f"<{notification.id}@{parseaddr(sender)[1].partition('@')[2]}>"
    made["Auto-Submitted"] = "auto-generated"
    made.set_content(notification.body)
    paragraphs = "".join(f"<p>{escape(line)}</p>" for line in notification.body.splitlines() if line.strip())
    made.add_alternative(f"<!doctype html><html><body>{paragraphs}</body></html>", subtype="html")
    return made


async def send(notification: TakenNotification, mail: MailServer) -> Outcome:
    """Send one e-mail. A connection lost after the message was sent is tried again: never none, maybe two."""
    try:
        made = message(notification, mail.sender)
    except ValueError as error:
        return Outcome("failed", f"invalid message: {error}")
    try:
        await aiosmtplib.send(
            made,
            hostname=mail.host,
            port=mail.port,
            username=mail.user,
            password=mail.password,
            use_tls=mail.security == "tls",
            start_tls=mail.security == "starttls",
            timeout=_TIMEOUT_SECONDS,
        )
    except aiosmtplib.SMTPRecipientsRefused as error:
        codes = [refusal.code for refusal in error.recipients]
        result = "failed" if all(code >= 500 for code in codes) else "retry"
        return Outcome(result, f"the mail server rejected the recipient ({codes[0]})")
    except aiosmtplib.SMTPResponseException as error:
        # A rejected login or sender is the operator's to mend, so the message waits for that.
        is_final = error.code >= 500 and not isinstance(
            error, aiosmtplib.SMTPAuthenticationError | aiosmtplib.SMTPSenderRefused
        )
        return Outcome("failed" if is_final else "retry", f"the mail server responded {error.code}")
    except (aiosmtplib.SMTPException, OSError, TimeoutError) as error:
        return Outcome("retry", f"the mail server cannot be reached: {type(error).__name__}")
    return SENT
