"""Failures of providers as codes of Penstock. docs/errors.md lists them."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, NoReturn

from penstock.sdk.context import Fail, Retry

_LONGEST = 1000
_PASSING = ("server_error", "rate_limit_exceeded")
_REFUSED = (400, 404, 405, 409, 410, 413, 415, 422)
# What providers that answer 400 for it say of an empty account: Anthropic, Runway.
_EMPTY = ("credit balance is too low", "not have enough credits")
# Errors of HTTP libraries after the request was sent.
_LOST = {"ReadTimeout", "ReadError", "RemoteProtocolError", "DecodingError"}


class Exhausted(Exception):
    """The account is empty, which the provider says with another status: the worker reads this as a 402."""

    def __init__(self, provider: str, url: str) -> None:
        super().__init__(f"the account at {provider} is exhausted")
        self.status_code, self.url = 402, url


@contextmanager
def mapped(provider: str) -> Generator[None]:
    """Around a call: turn errors that no retry can fix into Fail, and network errors into Retry.

    If the request was sent, the provider may charge for it: the database books the estimate of `answer_lost`.
    A 429, 529, 402 or 5xx stays the client's error: the worker reads limits from it, or retries.
    """
    try:
        yield
    except (Fail, Retry):
        raise
    except Exception as error:
        status = status_of(error)
        if status is not None:
            if status == 400 and any(words in str(error) for words in _EMPTY):
                response: Any = getattr(error, "response", None)
                raise Exhausted(provider, str(response.url)) from error
            if (found := of_status(provider, status, str(error))) is not None:
                raise found from error
            raise
        for cause in (error, error.__cause__):
            # The official clients wrap the errors of their HTTP library, which need not be httpx.
            names = {base.__name__ for base in type(cause).__mro__}
            problem = f"{type(cause).__name__}: {cause}"[:_LONGEST]
            if names & _LOST:
                text = f"the answer of {provider} did not arrive: {problem}"
                raise Retry(text, code="answer_lost") from error
            if "TransportError" in names:
                raise Retry(f"{provider} cannot be reached: {problem}", code="network_error") from error
        raise


@contextmanager
def readable(provider: str) -> Generator[None]:
    """Around the reading of an answer: one without the documented form, such as a gateway's page, is lost."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        unreadable(provider, f"{type(error).__name__}: {error}", error)


def unreadable(provider: str, problem: str, cause: Exception | None = None) -> NoReturn:
    """The answer does not have the documented form."""
    text = f"the answer of {provider} cannot be read: {problem}"[:_LONGEST]
    raise Retry(text, code="answer_lost") from cause


def check_file(provider: str, content_type: str) -> None:
    """Raise an error for a page or a document where there should be a recording or a film."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind.startswith("text/") or kind.endswith(("json", "xml", "html")):
        unreadable(provider, f"{kind} instead of a file")


@contextmanager
def paid(answer: Any) -> Generator[None]:
    """Around the judgement of an answer: its failure carries the answer, which the provider charges for."""
    try:
        yield
    except (Fail, Retry) as error:
        error.answer = answer  # type: ignore[attr-defined]
        raise


def status_of(error: BaseException) -> int | None:
    """The HTTP status of an error, if a response led to it."""
    response: Any = getattr(error, "response", None)
    found: Any = getattr(response, "status_code", None)
    return found if isinstance(found, int) else None


def of_status(provider: str, status: int, message: str) -> Fail | None:
    """The failure of a status; None if a later try may succeed."""
    text = message[:_LONGEST]
    if 300 <= status < 400:
        return Fail(f"{provider} redirected the request, which is not followed", code="provider_redirected")
    if status in (401, 403):
        return Fail(text, code="provider_key_refused")
    return Fail(text, code="provider_refused") if status in _REFUSED else None


def truncated(provider: str, limit: int) -> NoReturn:
    """The answer was cut off."""
    raise Retry(f"{provider} cut the answer off at {limit:,} tokens", code="answer_truncated")


def refused(provider: str, reason: str = "") -> NoReturn:
    """The model refused to answer."""
    raise Fail(
        f"{provider} refused to answer: {reason or 'no reason given'}"[:_LONGEST], code="model_refused"
    )


def filtered(provider: str, reason: str = "") -> NoReturn:
    """A content filter removed the answer, or parts of it."""
    text = f"the content filter of {provider} stopped the answer{': ' if reason else ''}{reason}"
    raise Fail(text[:_LONGEST], code="content_filtered")


def empty(provider: str) -> NoReturn:
    """There is no answer."""
    raise Retry(f"{provider} returned an empty answer", code="empty_text")


def failed(provider: str, code: str, message: str) -> NoReturn:
    """The provider could not finish: its own failure is retried, one of the request is not."""
    text = f"{provider} failed ({code}): {message}"[:_LONGEST]
    if code in _PASSING:
        raise Retry(text, code="provider_failed")
    raise Fail(text, code="provider_refused")


def unknown_end(provider: str, reason: object) -> NoReturn:
    """The answer ended for a reason that this version does not know, so it may be incomplete."""
    raise Fail(f"{provider} ended the answer for an unknown reason: {reason!r}", code="unknown_stop_reason")
