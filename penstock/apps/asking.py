"""What the apps share: a model is asked, over the OpenAI client or over Anthropic's, and says what that took.

Retries and limits are the database's. Keys are where the clients look for them: `OPENAI_API_KEY`,
`ANTHROPIC_API_KEY`; what runs on this machine is shown none.
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
    # Loaded when a model is asked for the first time: it takes longer than all the rest of an app.
    import openai

SIMULATOR_URL = "http://127.0.0.1:8090/v1"
"""Where `penstock simulate --port 8090` is."""

SECONDS = 110.0
_LONGEST = 200_000  # characters


class Answer(NamedTuple):
    """What a model wrote, and what that took."""

    text: str
    input_tokens: int
    output_tokens: int


def tokens(text: str) -> int:
    """What a text takes at most when it is sent: to set aside, before anybody has counted."""
    return len(text.encode()) // 2


async def ask(
    ctx: Context, prompt: str, *, provider: str, manner: str, most_tokens: int, url: str | None
) -> Answer:
    """Ask `name/model`, at its own address or at `url`; what it used is reported for the task's provider."""
    name, _, model = provider.partition("/")
    call = _ask_anthropic if name == "anthropic" else _ask_openai
    answer = await call(ctx, model, manner, prompt, most_tokens, url)
    if ctx.provider is not None:
        await ctx.ausage(input_tokens=answer.input_tokens, output_tokens=answer.output_tokens)
    if not answer.text.strip():
        raise Retry("the model wrote nothing", code="empty_text")
    if len(answer.text) > _LONGEST:
        raise Fail(f"the model wrote more than {_LONGEST:,} characters", code="text_too_long")
    return answer


async def _ask_openai(
    ctx: Context, model: str, manner: str, prompt: str, most: int, url: str | None
) -> Answer:
    import openai

    async with openai_client(url) as client:
        try:
            response = await client.chat.completions.with_raw_response.create(
                model=model,
                # Others know the old name, OpenAI's newer models insist on the new one.
                max_tokens=most if url else openai.omit,
                max_completion_tokens=openai.omit if url else most,
                messages=[{"role": "system", "content": manner}, {"role": "user", "content": prompt}],
            )
        except openai.APIStatusError as error:
            raise refusal(error) from error
        await ctx.aheard(response)
        completion = response.parse()
    used = completion.usage
    return Answer(
        completion.choices[0].message.content or "" if completion.choices else "",
        # Where nothing is said of it, at least as much as can be.
        used.prompt_tokens if used else tokens(manner + prompt),
        used.completion_tokens if used else most,
    )


async def _ask_anthropic(
    ctx: Context, model: str, manner: str, prompt: str, most: int, url: str | None
) -> Answer:
    try:
        import anthropic
    except ImportError:
        raise Fail(
            "this model needs the package anthropic: pip install anthropic", code="no_client"
        ) from None

    key = _key(url, "ANTHROPIC_API_KEY")
    http = anthropic.DefaultAsyncHttpxClient(verify=_tls(), trust_env=not is_here(url))
    async with anthropic.AsyncAnthropic(
        base_url=url, api_key=key, http_client=http, max_retries=0, timeout=SECONDS
    ) as client:
        try:
            response = await client.messages.with_raw_response.create(
                model=model,
                max_tokens=most,
                system=manner,
                messages=[{"role": "user", "content": prompt}],
            )
        except anthropic.APIStatusError as error:
            raise refusal(error) from error
        await ctx.aheard(response)
        message = await response.parse()
    text = "".join(block.text for block in message.content if block.type == "text")
    return Answer(text, message.usage.input_tokens, message.usage.output_tokens)


def openai_client(url: str | None) -> openai.AsyncOpenAI:
    """A client that leaves retries to the database."""
    import openai

    key = _key(url, "OPENAI_API_KEY")
    http = openai.DefaultAsyncHttpxClient(verify=_tls(), trust_env=not is_here(url))
    return openai.AsyncOpenAI(base_url=url, api_key=key, http_client=http, max_retries=0, timeout=SECONDS)


def is_here(url: str | None) -> bool:
    """Whether an address is on this machine: then no proxy stands between, whatever the environment names."""
    host = urlsplit(url or "").hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _key(url: str | None, variable: str) -> str:
    """The provider's key. What is on this machine is shown none, and what has an address may need none."""
    key = None if is_here(url) else os.environ.get(variable)
    if not key and not url:
        raise Fail(f"{variable} is not set", code="no_key")
    return key or "none"


def refusal(error: Any) -> Exception:
    """What another try cannot change fails for good; the worker understands the rest as it is."""
    if error.status_code in (400, 401, 403, 404, 413, 422):
        return Fail(str(error)[:1000], code="provider_refused")
    return error


@cache
def _tls() -> ssl.SSLContext:
    # Made once: reading all certificates takes longer than many a call.
    return ssl.create_default_context()
