"""Calls to language models through the OpenAI or Anthropic client, shared by the apps.

The database handles retries and rate limits. Keys come from `OPENAI_API_KEY` and `ANTHROPIC_API_KEY`; servers
on this machine get no key.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from penstock import Context, Fail, Retry

if TYPE_CHECKING:
    # Imported on the first call, because the import is slow.
    import anthropic
    import openai

SIMULATOR_URL = "http://127.0.0.1:8090/v1"
"""The URL of `penstock simulate --port 8090`."""

SECONDS = 110.0
_LONGEST = 200_000  # characters


class Completion(NamedTuple):
    """The text of a model, and the tokens used."""

    text: str
    input_tokens: int
    output_tokens: int


def tokens(text: str) -> int:
    """An upper estimate of a text's tokens, for reservations."""
    return len(text.encode()) // 2


async def ask(
    ctx: Context, prompt: str, *, provider: str, system_prompt: str, most_tokens: int, url: str | None
) -> Completion:
    """Call `name/model` at its default URL or at `url`. Reports the usage for the task's provider."""
    name, _, model = provider.partition("/")
    call = _ask_anthropic if name == "anthropic" else _ask_openai
    answer = await call(ctx, model, system_prompt, prompt, most_tokens, url)
    if ctx.provider is not None:
        await ctx.ausage(input_tokens=answer.input_tokens, output_tokens=answer.output_tokens)
    if not answer.text.strip():
        raise Retry("the model returned an empty text", code="empty_text")
    if len(answer.text) > _LONGEST:
        raise Fail(f"the model returned more than {_LONGEST:,} characters", code="text_too_long")
    return answer


async def _ask_openai(
    ctx: Context, model: str, system_prompt: str, prompt: str, most: int, url: str | None
) -> Completion:
    import openai

    async with openai_client(url) as client:
        try:
            response = await client.chat.completions.with_raw_response.create(
                model=model,
                # OpenAI's newer models require the new name; other servers know only the old one.
                max_tokens=most if url else openai.omit,
                max_completion_tokens=openai.omit if url else most,
                messages=[{"role": "system", "content": system_prompt}, {"role": "user", "content": prompt}],
            )
        except openai.APIStatusError as error:
            raise provider_error(error) from error
        await ctx.aheard(response)
        completion = response.parse()
    used = completion.usage
    return Completion(
        completion.choices[0].message.content or "" if completion.choices else "",
        # Without usage in the response, assume the upper estimate.
        used.prompt_tokens if used else tokens(system_prompt + prompt),
        used.completion_tokens if used else most,
    )


async def _ask_anthropic(
    ctx: Context, model: str, system_prompt: str, prompt: str, most: int, url: str | None
) -> Completion:
    try:
        import anthropic
    except ImportError:
        raise Fail(
            "the package anthropic is not installed: pip install anthropic", code="no_client"
        ) from None

    async with anthropic_client(url) as client:
        try:
            response = await client.messages.with_raw_response.create(
                model=model,
                max_tokens=most,
                system=system_prompt,
                messages=[{"role": "user", "content": prompt}],
            )
        except anthropic.APIStatusError as error:
            raise provider_error(error) from error
        await ctx.aheard(response)
        message = await response.parse()
    text = "".join(block.text for block in message.content if block.type == "text")
    return Completion(text, message.usage.input_tokens, message.usage.output_tokens)


def anthropic_client(url: str | None, seconds: float = SECONDS) -> anthropic.AsyncAnthropic:
    """An Anthropic client without retries."""
    import anthropic

    key = _key(url, "ANTHROPIC_API_KEY")
    http = anthropic.DefaultAsyncHttpxClient(verify=_tls(), trust_env=not is_here(url))
    return anthropic.AsyncAnthropic(
        base_url=url, api_key=key, http_client=http, max_retries=0, timeout=seconds
    )


def openai_client(url: str | None) -> openai.AsyncOpenAI:
    """An OpenAI client without retries, which the database does."""
    import openai

    key = _key(url, "OPENAI_API_KEY")
    http = openai.DefaultAsyncHttpxClient(verify=_tls(), trust_env=not is_here(url))
    return openai.AsyncOpenAI(base_url=url, api_key=key, http_client=http, max_retries=0, timeout=SECONDS)


def is_here(url: str | None) -> bool:
    """Whether the URL is on this machine, so that no proxy is used."""
    host = urlsplit(url or "").hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _key(url: str | None, variable: str) -> str:
    """The provider's key. Servers on this machine get none; servers with a `url` may not need one."""
    key = None if is_here(url) else os.environ.get(variable)
    if not key and not url:
        raise Fail(f"environment variable {variable} is not set", code="no_key")
    return key or "none"


def provider_error(error: Any) -> Exception:
    """Turn client errors, which a retry cannot fix, into Fail. The worker handles other errors itself."""
    if error.status_code in (400, 401, 403, 404, 413, 422):
        return Fail(str(error)[:1000], code="provider_refused")
    return error


@cache
def _tls() -> ssl.SSLContext:
    # Created once, because loading the certificates is slow.
    return ssl.create_default_context()
