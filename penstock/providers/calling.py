"""Calls of a handler: find the address and the key, send the request, report limits and usage."""

from __future__ import annotations

from typing import Any

from penstock.errors import PenstockError
from penstock.providers import keys
from penstock.providers.connection import SECONDS, Connection, checked_url, host_of
from penstock.providers.hosts import LOCAL, OWN
from penstock.providers.interface import Answer, Request, Submitted
from penstock.providers.registry import adapter
from penstock.sdk.context import Context, Fail, Retry
from penstock.settings import is_loopback

_LONGEST = 200_000  # characters
_PAID_TWICE_AT_MOST = ("answer_truncated", "empty_text")


async def connect(ctx: Context, provider: str, url: str | None = None) -> Connection:
    """The connection of `name` or `name/model`: at `url`, or at the provider's own address.

    The key is the tenant's own, the one for all tenants, or the one in the environment. It goes to its host
    only, so a server at another address gets none.
    """
    name = provider.partition("/")[0]
    if name in LOCAL:
        return Connection(name, "")
    known = OWN.get(name)
    if url is None and known is None:
        raise Fail(f"no address is known for provider {name!r}", code="unknown_address")
    try:
        address = checked_url(url or (known.url if known else ""))
        if is_loopback(host_of(address)):
            # Simulators get no key, so none is opened.
            return Connection(name, address)
        sealed = await ctx.asealed_key(name)
        key = keys.of_environment(name) if sealed is None else keys.unseal(sealed)
    except PenstockError as error:
        raise Fail(error.message, code=error.code) from error
    connection = Connection(name, address, key)
    if url is None and connection.secret is None:
        variable = known.variable if known else ""
        raise Fail(f"there is no key of {name}: set {variable} or store one", code="no_key")
    return connection


def connect_with_environment(name: str, url: str | None = None, seconds: float = SECONDS) -> Connection:
    """The connection of a provider known by name, for code outside of tasks, with the key of the environment.

    It goes to the provider's own host only.
    """
    connection = Connection(name, checked_url(url or OWN[name].url), keys.of_environment(name), seconds)
    if url is None and connection.secret is None:
        raise Fail(f"there is no key of {name}: set {OWN[name].variable}", code="no_key")
    return connection


async def ask(ctx: Context, request: Request, *, provider: str, url: str | None = None) -> Answer:
    """Send a request to `name/model` that is answered at once, and report its usage and limits.

    What an unusable answer cost is reported as well, before its failure is raised. An answer that is cut off
    or empty after the first attempt fails the task: every further attempt would be charged too.
    """
    model = provider.partition("/")[2]
    connection = await connect(ctx, provider, url)
    try:
        answer = await adapter(provider, request.medium).submit(connection, model, request)
    except Exception as error:
        await _report(ctx, getattr(error, "answer", None))
        if isinstance(error, Retry) and error.code in _PAID_TWICE_AT_MOST and ctx.attempt > 1:
            raise Fail(str(error), code=error.code) from error
        raise
    if isinstance(answer, Submitted):
        raise Fail(f"{provider} answers later: run it as an operation", code="answers_later")
    await _report(ctx, answer)
    if len(answer.text) > _LONGEST:
        raise Fail(f"{provider} returned more than {_LONGEST:,} characters", code="text_too_long")
    return answer


async def _report(ctx: Context, answer: Any) -> None:
    if ctx.provider is None or not isinstance(answer, Answer):
        return
    await ctx.areport_signal(answer.signal)
    units: dict[str, Any] = dict(answer.units)
    await ctx.ausage(**units)
