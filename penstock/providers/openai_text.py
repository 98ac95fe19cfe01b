"""Text of OpenAI (responses) and of hosts with OpenAI's chat completions, and the text in pictures."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, ClassVar

from penstock.extras import required
from penstock.providers import failures, keys
from penstock.providers.connection import NO_KEY, Connection
from penstock.providers.interface import Adapter, Answer, Medium, Request, TextRequest, VisionRequest
from penstock.providers.reserving import input_tokens, output_tokens

if TYPE_CHECKING:
    import openai

_ENDED = ("stop", None)
_ACCOUNT = ("OpenAI-Organization", "OpenAI-Project")


def client(connection: Connection) -> openai.AsyncOpenAI:
    """An OpenAI client without retries, which the database does, and without redirects."""
    with required():
        # Imported on the first call, because the import is slow.
        import openai

    http = openai.DefaultAsyncHttpxClient(**connection.http_options())
    omitted: Any = openai.Omit()
    headers = connection.client_headers("OPENAI_CUSTOM_HEADERS", omitted)
    if connection.secret is None or connection.key != keys.of_environment("openai"):
        # The ids in OPENAI_ORG_ID and OPENAI_PROJECT_ID belong to the key in OPENAI_API_KEY.
        headers |= dict.fromkeys(_ACCOUNT, omitted)
    return openai.AsyncOpenAI(
        base_url=connection.url,
        api_key=connection.secret or NO_KEY,
        default_headers=headers,
        http_client=http,
        max_retries=0,
        timeout=connection.seconds,
    )


class OpenAIText(Adapter):
    """https://developers.openai.com/api/docs/api-reference/responses"""

    name = "openai"
    media: ClassVar[frozenset[Medium]] = frozenset({"text", "vision"})
    models_path = "/models"

    async def submit(self, connection: Connection, model: str, request: Request) -> Answer:
        wanted = text_request(request)
        most = output_tokens(wanted, f"{connection.provider}/{model}")
        async with client(connection) as api:
            with failures.mapped(connection.provider):
                create: Any = api.responses.with_raw_response.create
                response = await create(**self._fields(model, wanted), max_output_tokens=most, store=False)
        with failures.readable(connection.provider):
            found: Any = response.parse()
            used = found.usage
            units = text_units(used and used.input_tokens, used and used.output_tokens, wanted, most)
            signal = self.limits(response.status_code, response.headers)
            texts, refusal = _contents(found)
            answer = Answer(units, "".join(texts), signal=signal)
            if found.status == "completed":
                return judged(connection, answer, refusal=refusal)
            if found.status == "failed" and found.error is not None:
                with failures.paid(answer):
                    failures.failed(connection.provider, found.error.code, found.error.message)
            reason = found.incomplete_details.reason if found.incomplete_details else None
            end = {"max_output_tokens": "length"}.get(str(reason), reason or str(found.status))
            return judged(connection, answer, end=end, refusal=refusal, most=most)

    def _fields(self, model: str, wanted: TextRequest) -> dict[str, Any]:
        parts: list[Any] = [{"type": "input_text", "text": wanted.prompt}]
        parts += [{"type": "input_image", "image_url": data_url(image)} for image in wanted.images]
        first = {"role": "user", "content": parts if wanted.images else wanted.prompt}
        fields: dict[str, Any] = {
            "model": model,
            "input": [first, *({"role": role, "content": text} for role, text in wanted.turns)],
        }
        if wanted.instructions:
            fields["instructions"] = wanted.instructions
        if wanted.schema is not None:
            schema = {"name": wanted.schema.name, "schema": dict(wanted.schema.schema), "strict": False}
            fields["text"] = {"format": {"type": "json_schema", **schema}}
        return fields


class CompatibleText(Adapter):
    """Chat completions, as OpenAI and most other hosts offer them."""

    name = "openai-compatible"
    media: ClassVar[frozenset[Medium]] = frozenset({"text", "vision"})
    models_path = "/models"

    async def submit(self, connection: Connection, model: str, request: Request) -> Answer:
        wanted = text_request(request)
        most = output_tokens(wanted, f"{connection.provider}/{model}")
        # OpenAI's newer models require the new name; other servers know only the old one.
        limit = "max_completion_tokens" if connection.host == "api.openai.com" else "max_tokens"
        async with client(connection) as api:
            with failures.mapped(connection.provider):
                create: Any = api.chat.completions.with_raw_response.create
                response = await create(**self._fields(model, wanted), **{limit: most})
        with failures.readable(connection.provider):
            found: Any = response.parse()
            used = found.usage
            units = text_units(used and used.prompt_tokens, used and used.completion_tokens, wanted, most)
            signal = self.limits(response.status_code, response.headers)
            if len(found.choices) == 0:
                return judged(connection, Answer(units, signal=signal))
            choice = found.choices[0]
            answer = Answer(units, choice.message.content or "", signal=signal)
            end = None if choice.finish_reason in _ENDED else choice.finish_reason
            return judged(connection, answer, end=end, refusal=choice.message.refusal, most=most)

    def _fields(self, model: str, wanted: TextRequest) -> dict[str, Any]:
        parts: list[Any] = [{"type": "text", "text": wanted.prompt}]
        parts += [{"type": "image_url", "image_url": {"url": data_url(image)}} for image in wanted.images]
        messages: list[Any] = [{"role": "user", "content": parts if wanted.images else wanted.prompt}]
        messages += [{"role": role, "content": text} for role, text in wanted.turns]
        if wanted.instructions:
            messages.insert(0, {"role": "system", "content": wanted.instructions})
        fields: dict[str, Any] = {"model": model, "messages": messages}
        if wanted.schema is not None:
            schema = {"name": wanted.schema.name, "schema": dict(wanted.schema.schema)}
            fields["response_format"] = {"type": "json_schema", "json_schema": schema}
        return fields


def text_request(request: Request) -> TextRequest:
    """The request as a prompt for a language model."""
    if isinstance(request, VisionRequest):
        hint = f" Its languages: {', '.join(request.languages)}." if request.languages else ""
        return TextRequest(request.prompt + hint, request.max_tokens, images=(request.image,))
    assert isinstance(request, TextRequest), f"a language model does not make {request.medium}"
    return request


def judged(
    connection: Connection,
    answer: Answer,
    *,
    end: str | None = None,
    refusal: str | None = None,
    most: int = 0,
) -> Answer:
    """The answer, if it is whole; else its failure, which carries what the answer cost."""
    name = connection.provider
    with failures.paid(answer):
        if refusal is not None:
            failures.refused(name, refusal)
        if end == "length":
            failures.truncated(name, most)
        if end == "content_filter":
            failures.filtered(name)
        if end is not None:
            failures.unknown_end(name, end)
        if not answer.text.strip():
            failures.empty(name)
    return answer


def data_url(image: Any) -> str:
    """A picture as a URL."""
    return f"data:{image.media_type};base64,{base64.b64encode(image.data).decode()}"


def _contents(response: Any) -> tuple[list[str], str | None]:
    """The texts of a response, and its refusal."""
    texts: list[str] = []
    refusal: str | None = None
    for item in response.output:
        for part in item.content or () if item.type == "message" else ():
            if part.type == "output_text":
                texts.append(part.text)
            elif part.type == "refusal":
                refusal = part.refusal
    return texts, refusal


def text_units(used: Any, made: Any, wanted: TextRequest, most: int) -> dict[str, float]:
    """The tokens that the response names. Without a valid number, the upper estimate."""
    return {
        "input_tokens": used if _is_count(used) else input_tokens(wanted),
        "output_tokens": made if _is_count(made) else most,
    }


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
