"""Text of Anthropic (messages), and the text in pictures."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from penstock.extras import required
from penstock.providers import failures
from penstock.providers.connection import NO_KEY, Connection
from penstock.providers.interface import Adapter, Answer, Image, Medium, Request, TextRequest
from penstock.providers.openai_text import judged, text_request, text_units
from penstock.providers.reserving import output_tokens

if TYPE_CHECKING:
    import anthropic

_ENDS = {"max_tokens": "length", "model_context_window_exceeded": "length"}


def client(connection: Connection) -> anthropic.AsyncAnthropic:
    """An Anthropic client without retries, which the database does, and without redirects."""
    with required():
        # Imported on the first call, because the import is slow.
        import anthropic

    return anthropic.AsyncAnthropic(
        base_url=connection.url,
        api_key=connection.secret or NO_KEY,
        default_headers=connection.client_headers("ANTHROPIC_CUSTOM_HEADERS", anthropic.Omit()),
        http_client=anthropic.DefaultAsyncHttpxClient(**connection.http_options()),
        max_retries=0,
        timeout=connection.seconds,
    )


class AnthropicText(Adapter):
    """https://platform.claude.com/docs/en/api/messages"""

    name = "anthropic"
    media: ClassVar[frozenset[Medium]] = frozenset({"text", "vision"})
    models_path = "/v1/models"
    headers: ClassVar[Mapping[str, str]] = {"anthropic-version": "2023-06-01"}
    key_header = "x-api-key"
    key_prefix = ""

    async def submit(self, connection: Connection, model: str, request: Request) -> Answer:
        wanted = text_request(request)
        most = output_tokens(wanted, f"{connection.provider}/{model}")
        async with client(connection) as api:
            with failures.mapped(connection.provider):
                create: Any = api.messages.with_raw_response.create
                response = await create(**self._fields(model, wanted), max_tokens=most)
            with failures.readable(connection.provider):
                found: Any = await response.parse()
                text = "".join(block.text for block in found.content if block.type == "text")
                units = _units(found.usage, wanted, most)
                answer = Answer(units, text, signal=self.limits(response.status_code, response.headers))
                reason = found.stop_reason
                if reason == "refusal":
                    details = found.stop_details
                    why = (details.explanation or details.category or "") if details else ""
                    return judged(connection, answer, refusal=why)
                end = None if reason in ("end_turn", "stop_sequence") else _ENDS.get(reason, str(reason))
                return judged(connection, answer, end=end, most=most)

    def _fields(self, model: str, wanted: TextRequest) -> dict[str, Any]:
        content: Any = wanted.prompt
        if wanted.images:
            content = [*map(_block, wanted.images), {"type": "text", "text": wanted.prompt}]
        messages: list[Any] = [{"role": "user", "content": content}]
        messages += [{"role": role, "content": text} for role, text in wanted.turns]
        fields: dict[str, Any] = {"model": model, "messages": messages}
        if wanted.instructions:
            fields["system"] = wanted.instructions
        if wanted.schema is not None:
            schema = dict(wanted.schema.schema)
            fields["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
        return fields


def _units(used: Any, wanted: TextRequest, most: int) -> dict[str, float]:
    if used is None:
        return text_units(None, None, wanted, most)
    # Tokens of the cache are part of the input.
    cached = (used.cache_creation_input_tokens or 0) + (used.cache_read_input_tokens or 0)
    read = used.input_tokens + cached if isinstance(used.input_tokens, int) else None
    return text_units(read, used.output_tokens, wanted, most)


def _block(image: Image) -> dict[str, Any]:
    data = base64.b64encode(image.data).decode()
    return {"type": "image", "source": {"type": "base64", "media_type": image.media_type, "data": data}}
