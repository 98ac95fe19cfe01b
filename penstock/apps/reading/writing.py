"""The text of a chapter, from a model: over the OpenAI client, or over Anthropic's."""

from __future__ import annotations

import os
import ssl
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock import Context, Fail, Retry
from penstock.apps.reading.settings import Settings, is_here

if TYPE_CHECKING:
    # Loaded when the first chapter is written: it takes longer than all the rest of this app.
    import openai

SECONDS = 110.0
_LONGEST = 200_000  # characters
_MANNER = "You write small books for curious readers, in plain, exact and unhurried prose."


class Answer(NamedTuple):
    """What a model wrote, and what that took."""

    text: str
    input_tokens: int
    output_tokens: int


def units(prompt: str, words: int) -> dict[str, int]:
    """What a text of so many words may take at most: so much of the budget is set aside for it."""
    return {"input_tokens": len((_MANNER + prompt).encode()) // 2, "output_tokens": words * 2 + 100}


def question(book: str, number: int, chapters: list[str], words: int) -> str:
    """What is asked for a chapter."""
    title = chapters[number - 1].replace('"', "'").replace("“", "'").replace("”", "'")
    return (
        f"Write chapter {number} of {len(chapters)} of a small book, {book[:200]}, in about {words} words. "
        "Leave an empty line between paragraphs. Begin with a paragraph; after it have two sections, each "
        "with a line of `## ` and a short heading before it. Use no other markup, and do not repeat the "
        f"chapter's title, which is:\n“{title}”"
    )


async def write(ctx: Context, prompt: str, words: int, settings: Settings) -> Answer:
    """Ask the task's provider, and report what it used."""
    name, _, model = (ctx.provider or settings.model).partition("/")
    call = _ask_anthropic if name == "anthropic" else _ask_openai
    answer = await call(ctx, model, prompt, units(prompt, words)["output_tokens"], settings.url)
    if ctx.provider is not None:
        await ctx.ausage(input_tokens=answer.input_tokens, output_tokens=answer.output_tokens)
    if not answer.text.strip():
        raise Retry("the model wrote nothing", code="empty_text")
    if len(answer.text) > _LONGEST:
        raise Fail(f"the model wrote more than {_LONGEST:,} characters", code="text_too_long")
    return answer


async def _ask_openai(ctx: Context, model: str, prompt: str, most: int, url: str | None) -> Answer:
    import openai

    async with openai_client(url) as client:
        try:
            response = await client.chat.completions.with_raw_response.create(
                model=model,
                # Others know the old name, OpenAI's newer models insist on the new one.
                max_tokens=most if url else openai.omit,
                max_completion_tokens=openai.omit if url else most,
                messages=[{"role": "system", "content": _MANNER}, {"role": "user", "content": prompt}],
            )
        except openai.APIStatusError as error:
            raise refusal(error) from error
        await ctx.aheard(response)
        completion = response.parse()
    used = completion.usage
    return Answer(
        completion.choices[0].message.content or "" if completion.choices else "",
        # Where nothing is said of it, at least as much as can be.
        used.prompt_tokens if used else len(prompt) // 2,
        used.completion_tokens if used else most,
    )


async def _ask_anthropic(ctx: Context, model: str, prompt: str, most: int, url: str | None) -> Answer:
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
                system=_MANNER,
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
