"""Log lines contain no credentials (S80)."""

from __future__ import annotations

import io
import json
import logging

import structlog

from penstock.redaction import RedactingFormatter

TEXT = "GET https://x.org/v1?sig=0123abcd failed for psk_0123456789abcdef0123"


def handler() -> tuple[logging.Handler, io.StringIO]:
    lines = io.StringIO()
    made = logging.StreamHandler(lines)
    made.setFormatter(RedactingFormatter())
    return made, lines


def test_log_line_and_its_stack_are_redacted() -> None:
    """S80: the message, its arguments, and the exception with its cause."""
    made, lines = handler()
    logger = logging.Logger("penstock.test")
    logger.addHandler(made)
    try:
        try:
            raise ValueError(TEXT)
        except ValueError as error:
            raise RuntimeError("password=hunter2") from error
    except RuntimeError:
        logger.exception("call failed: %s", TEXT)
    written = lines.getvalue()
    assert "Traceback" in written and "RuntimeError" in written and "https://x.org/v1" in written
    assert not any(secret in written for secret in ("0123abcd", "0123456789abcdef", "hunter2"))


def test_json_line_stays_json() -> None:
    made, lines = handler()
    inner = logging.Logger("penstock.test")
    inner.addHandler(made)
    log = structlog.wrap_logger(inner, processors=[structlog.processors.JSONRenderer()])
    log.warning("delivery.failed", error=TEXT, headers={"Authorization": 'Bearer abc"def12345'})
    written = json.loads(lines.getvalue())
    assert "0123abcd" not in str(written) and written["event"] == "delivery.failed"
