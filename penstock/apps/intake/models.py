"""Asks a model for a JSON document that fits a schema, with one attempt to repair a bad answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import pydantic

from penstock import Context, Fail, providers
from penstock.apps.intake import passes
from penstock.providers import Image, Schema, TextRequest

Model = TypeVar("Model", bound=pydantic.BaseModel)


async def ask(
    ctx: Context,
    form: type[Model],
    schema: dict[str, Any],
    prompt: str,
    *,
    provider: str,
    url: str | None,
    images: list[bytes] | None = None,
    max_tokens: int = passes.OUTPUT_TOKENS,
) -> Model:
    """The model's answer as `form`. Reports the usage of each call. A second bad answer fails the task."""
    wanted = TextRequest(
        prompt,
        max_tokens,
        system=passes.SYSTEM_PROMPT,
        schema=Schema(form.__name__, schema),
        images=tuple(Image(image) for image in images or ()),
    )
    text, problem = await _complete(ctx, wanted, provider, url), ""
    for is_last in (False, True):
        try:
            return form.model_validate_json(_unfenced(text))
        except pydantic.ValidationError as error:
            problem = "; ".join(
                f"{'.'.join(map(str, each['loc'])) or 'document'}: {each['msg']}"
                for each in error.errors()[:5]
            )
        if not is_last:
            ask_again = f"This does not fit the schema: {problem}. Answer with the corrected JSON document."
            again = replace(wanted, turns=(("assistant", text), ("user", ask_again)))
            text = await _complete(ctx, again, provider, url)
    raise Fail(f"the model's answer does not fit the schema: {problem}"[:1000], code="bad_answer")


async def _complete(ctx: Context, wanted: TextRequest, provider: str, url: str | None) -> str:
    return (await providers.ask(ctx, wanted, provider=provider, url=url)).text


def _unfenced(text: str) -> str:
    """The JSON in an answer, without a Markdown fence around it."""
    text = text.strip()
    if text.startswith("```"):
        text = text.partition("\n")[2].rpartition("```")[0]
    return text
