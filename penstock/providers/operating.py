"""Requests that take minutes: submitted as an operation, then woken by a webhook or by the next check."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast
from uuid import UUID

import httpx

from penstock.contract import operations
from penstock.errors import Invalid
from penstock.providers.calling import connect
from penstock.providers.interface import Answer, Submitted, VideoRequest
from penstock.providers.registry import adapter
from penstock.sdk.app import App
from penstock.sdk.context import Context, Fail, Retry
from penstock.sdk.operations import Operation, OperationFailed, Settled
from penstock.sdk.webhooks import Event
from penstock.settings import settings
from penstock.types import WebhookOutcome

WEBHOOK_SECRET = "REPLICATE_WEBHOOK_SECRET"  # noqa: S105 the name of a variable
"""The environment variable with the secret that signs Replicate's webhooks; several, separated by spaces."""

_PERMANENT = (
    "content_filtered",
    "provider_refused",
    "provider_key_refused",
    "provider_redirected",
    "bad_answer",
    "file_too_large",
)


async def operate(
    ctx: Context,
    request: VideoRequest,
    *,
    provider: str,
    object: str,
    save: Callable[[Answer], Awaitable[Any]],
    url: str | None = None,
    timeout: float | str = "15m",  # noqa: ASYNC109 of the operation, not of this call
    checks: Sequence[float | str] = ("20s", "40s", "1m", "2m", "3m", "5m"),
) -> Any:
    """Send a request to `name/model` as an operation of `object`. Returns what `save` made of the answer.

    The seconds of the request are charged when the answer has arrived. With PENSTOCK_PUBLIC_URL and a webhook
    secret, providers that send webhooks wake the task; others are asked at these ages.
    """
    model, found = provider.partition("/")[2], adapter(provider, request.medium)
    connection = await connect(ctx, provider, url)

    async def submit(operation: Operation) -> str:
        wanted = replace(request, webhook_url=_webhook_url(connection.provider, operation.id))
        made = await found.submit(connection, model, wanted)
        assert isinstance(made, Submitted), f"{provider} answers at once"
        return made.external_id

    async def check(operation: Operation) -> Settled | None:
        if operation.external_id is None:
            return None
        try:
            answer = await found.check(connection, operation.external_id)
        except Fail as error:
            return Settled("failed", code=error.code, message=str(error))
        except Retry as error:
            # The film was paid for: nothing else ends the operation, and the next check asks again.
            is_final = error.code == "empty_text"
            return Settled("failed", code=error.code, message=str(error)) if is_final else None
        except httpx.HTTPStatusError as error:
            if error.response.status_code < 500:
                raise
            return None
        if answer is None:
            return None
        return Settled("completed", await save(answer), {**answer.units, "seconds": request.seconds})

    async def cancel(operation: Operation) -> None:
        if operation.external_id is not None:
            await found.cancel(connection, operation.external_id)

    try:
        return await ctx.operation(
            object, submit=submit, check=check, cancel=cancel, timeout=timeout, checks=checks
        )
    except OperationFailed as error:
        if error.code in _PERMANENT:
            # The next attempt would pay for the same refusal.
            raise Fail(error.message, code=error.code) from error
        raise


def receive_webhooks(app: App) -> None:
    """Let webhooks of Replicate (`/webhooks/replicate`) wake the tasks of the app that wait for them."""

    @app.webhooks.add("replicate", scheme="standard", secrets=_secrets, identify=_identify)
    async def told(event: Event) -> WebhookOutcome | None:  # pyright: ignore[reportUnusedFunction]
        outcome = await operations.tell(
            event.connection,
            provider=f"replicate/{event.payload.get('model')}",
            external_id=str(event.payload["id"]),
        )
        # The answer itself comes from Replicate when the task asks: a webhook can be replayed.
        return cast("WebhookOutcome", {"late": "applied"}.get(outcome, outcome))


def _secrets() -> list[str]:
    return os.environ.get(WEBHOOK_SECRET, "").split()


def _identify(payload: Any, headers: Mapping[str, Sequence[str]]) -> tuple[str, str]:
    """The key and the type of an event. A prediction has each status once."""
    fields = cast("dict[str, Any]", payload) if isinstance(payload, dict) else {}
    if not isinstance(fields.get("id"), str) or not isinstance(fields.get("status"), str):
        raise Invalid("the payload has no id and status", code="invalid_webhook")
    return f"{fields['id'][:100]}/{fields['status'][:50]}", f"prediction.{fields['status'][:50]}"


def _webhook_url(provider: str, operation_id: UUID) -> str | None:
    public = settings().public_url
    if provider != "replicate" or public is None or not _secrets():
        return None
    return f"{public}/webhooks/replicate?operation={operation_id}"
