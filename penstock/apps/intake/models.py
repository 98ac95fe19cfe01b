"""Asks a model for a JSON document that fits a schema, with one attempt to repair a bad answer."""

from __future__ import annotations

import base64
import json
from typing import Any, TypeVar

import pydantic

from penstock import Context, Fail, Retry
from penstock.apps import asking
from penstock.apps.intake import passes

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
) -> Model:
    """The model's answer as `form`. Reports the usage of each call. A second bad answer fails the task."""
    content: list[dict[str, Any]] = [{"type": "text", "text": prompt}]
    for image in images or ():
        data = base64.b64encode(image).decode()
        content.append({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}})
    messages: list[Any] = [
        {"role": "system", "content": passes.SYSTEM_PROMPT},
        {"role": "user", "content": content if images else prompt},
    ]
    text, problem = await _complete(ctx, messages, form.__name__, schema, provider, url), ""
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
            again = [
                *messages,
                {"role": "assistant", "content": text},
                {"role": "user", "content": ask_again},
            ]
            text = await _complete(ctx, again, form.__name__, schema, provider, url)
    raise Fail(f"the model's answer does not fit the schema: {problem}"[:1000], code="bad_answer")


async def _complete(
    ctx: Context, messages: list[Any], name: str, schema: dict[str, Any], provider: str, url: str | None
) -> str:
    import openai

    model = provider.partition("/")[2]
    async with asking.openai_client(url) as client:
        try:
            response = await client.chat.completions.with_raw_response.create(
                model=model,
                max_tokens=passes.OUTPUT_TOKENS if url else openai.omit,
                max_completion_tokens=openai.omit if url else passes.OUTPUT_TOKENS,
                messages=messages,
                response_format={"type": "json_schema", "json_schema": {"name": name, "schema": schema}},
            )
        except openai.APIStatusError as error:
            raise asking.provider_error(error) from error
        await ctx.areport_response(response)
        completion = response.parse()
    used = completion.usage
    if ctx.provider is not None:
        await ctx.ausage(
            input_tokens=used.prompt_tokens if used else asking.tokens(json.dumps(messages)),
            output_tokens=used.completion_tokens if used else passes.OUTPUT_TOKENS,
        )
    if not completion.choices:
        raise Retry("the model returned no answer", code="empty_text")
    choice = completion.choices[0]
    if choice.message.refusal:
        raise Fail(f"the model refused: {choice.message.refusal[:500]}", code="model_refused")
    return choice.message.content or ""


def _unfenced(text: str) -> str:
    """The JSON in an answer, without a Markdown fence around it."""
    text = text.strip()
    if text.startswith("```"):
        text = text.partition("\n")[2].rpartition("```")[0]
    return text
