"""The OpenAI API: chat completions, responses, embeddings, images, speech."""

from __future__ import annotations

import math
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from struct import unpack
from typing import Any, ClassVar, cast

from penstock.simulator import answers, content
from penstock.simulator.limits import Account, Rejection
from penstock.simulator.provider import (
    MOST_TOKENS,
    Endpoint,
    Problem,
    Provider,
    ProviderRequest,
    Reply,
    bearer,
    document,
    invalid,
)

_MOST_INPUTS, _MOST_DIMENSIONS, _MOST_IMAGES, _MOST_SPOKEN = 2048, 3072, 10, 4096
_INCOMPLETE = {"length": "max_output_tokens", "filter": "content_filter"}
_FORMATS = ("text", "json_object", "json_schema")
_DATA_URL = re.compile(r"data:image/(?:png|jpeg|webp|gif);base64,([A-Za-z0-9+/]{44})")
_IMAGE_TOKENS = 272  # a square picture of low quality
_LEARN_MORE = "Visit https://platform.openai.com/account/rate-limits to learn more."
_LIMIT_NAMES = {
    "rpm": "requests per min (RPM)",
    "tpm": "tokens per min (TPM)",
    "itpm": "input tokens per min (ITPM)",
    "otpm": "output tokens per min (OTPM)",
    "rph": "requests per hour (RPH)",
    "tph": "tokens per hour (TPH)",
    "concurrency": "concurrent requests",
}


def duration(seconds: float) -> str:
    """A duration as Go writes it, to the millisecond: 12ms, 1.5s, 6m0s."""
    milliseconds = math.ceil(round(seconds * 1000, 6))
    if milliseconds < 1000:
        return f"{milliseconds}ms" if milliseconds else "0s"
    minutes, milliseconds = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    text = f"{milliseconds / 1000:g}s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text


# Endpoints


def _chat(request: ProviderRequest) -> Reply:
    model, messages = request.model(), request.messages("messages")
    if request.count("n") not in (None, 1):
        raise Problem("invalid", "Unsupported value: 'n' must be 1 here.", param="n")
    most = request.count("max_completion_tokens", MOST_TOKENS) or request.count("max_tokens", MOST_TOKENS)
    prompt = "\n".join(content.texts(messages))
    made = answers.write(request, prompt, most, _schema(request.fields.get("response_format"), "json_schema"))
    used = content.tokens(prompt) + _image_tokens(messages)
    usage: dict[str, Any] = {
        "prompt_tokens": used,
        "completion_tokens": made.tokens,
        "total_tokens": used + made.tokens,
        "completion_tokens_details": {"reasoning_tokens": made.reasoning_tokens},
    }
    head = {"id": f"chatcmpl-{request.number:08d}", "created": int(request.now), "model": model}
    finish = {"filter": "content_filter", "refusal": "stop"}.get(made.end, made.end)
    is_stream = request.flag("stream")
    if is_stream:
        options = request.fields.get("stream_options")
        with_usage = (
            isinstance(options, dict) and cast("dict[str, Any]", options).get("include_usage") is True
        )
        parts = _chunks(head, made, finish, usage if with_usage else None)
    else:
        is_refused = made.end == "refusal"
        message = {
            "role": "assistant",
            "content": None if is_refused else made.text,
            "refusal": made.text if is_refused else None,
        }
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
        parts = [document({**head, "object": "chat.completion", "choices": [choice], "usage": usage})]
    return Reply(model, used, made.tokens, most or max(made.tokens, content.LONGEST_ANSWER), parts, is_stream)


def _schema(wanted: Any, nested: str | None) -> dict[str, Any] | None:
    """The schema of the answer that a request asks for; None: it may be any text."""
    wanted = wanted or {"type": "text"}
    if not isinstance(wanted, dict) or cast("dict[str, Any]", wanted).get("type") not in _FORMATS:
        raise invalid(
            "response_format", f"an object with a type of {', '.join(_FORMATS)}", cast("object", wanted)
        )
    form = cast("dict[str, Any]", wanted)
    if form["type"] == "text":
        return None
    if form["type"] == "json_object":
        return {"type": "object", "properties": {"answer": {"type": "string"}}}
    return answers.schema_of(form.get(nested) if nested else form, "response_format.json_schema")


def _image_tokens(messages: list[dict[str, Any]]) -> int:
    """85 tokens for each image, and 170 for each square of 512 pixels of a PNG."""
    count = 0
    for message in messages:
        parts: Any = message.get("content")
        for part in cast("list[Any]", parts) if isinstance(parts, list) else ():
            found: Any = cast("dict[str, Any]", part).get("image_url") if isinstance(part, dict) else None
            if found is None:
                continue
            # An object with a URL in chat completions, the URL itself in responses.
            url: Any = cast("dict[str, Any]", found).get("url", "") if isinstance(found, dict) else found
            match = _DATA_URL.match(str(url))
            if match is None:
                raise invalid("image_url", "a data URL of a PNG, JPEG, WebP or GIF", cast("object", found))
            head = b64decode(match[1][:44])
            width, height = unpack(">II", head[16:24]) if head[:4] == b"\x89PNG" else (512, 512)
            count += 85 + 170 * (-(-width // 512)) * (-(-height // 512))
    return count


def _chunks(
    head: dict[str, Any], made: answers.Written, finish: str, usage: dict[str, Any] | None
) -> list[bytes]:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    part = "refusal" if made.end == "refusal" else "content"
    deltas += [{part: piece} for piece in content.pieces(made.text)]
    choices: list[list[dict[str, Any]]] = [
        [{"index": 0, "delta": delta, "finish_reason": None}] for delta in deltas
    ]
    choices.append([{"index": 0, "delta": {}, "finish_reason": finish}])
    head = {**head, "object": "chat.completion.chunk"}
    chunks: list[dict[str, Any]] = [{**head, "choices": some} for some in choices]
    if usage:
        chunks.append({**head, "choices": [], "usage": usage})
    return [b"data: " + document(chunk) + b"\n\n" for chunk in chunks] + [b"data: [DONE]\n\n"]


def _responses(request: ProviderRequest) -> Reply:
    model = request.model()
    given = request.fields.get("input")
    if not isinstance(given, str) or not given:
        given = request.messages("input")
    if request.flag("stream"):
        raise Problem("invalid", "Unsupported value: 'stream' must be false here.", param="stream")
    most = request.count("max_output_tokens", MOST_TOKENS)
    instructions = request.fields.get("instructions")
    prompt = "\n".join(content.texts([instructions, given]))
    wanted: Any = request.fields.get("text") or {}
    form: Any = cast("dict[str, Any]", wanted).get("format") if isinstance(wanted, dict) else wanted
    made = answers.write(request, prompt, most, _schema(form, None))
    used = content.tokens(prompt) + (_image_tokens(given) if isinstance(given, list) else 0)
    status = "incomplete" if made.end in ("length", "filter") else "completed"
    reply: dict[str, Any] = {
        "id": f"resp_{request.number:08d}",
        "object": "response",
        "created_at": int(request.now),
        "status": status,
        "error": None,
        "incomplete_details": {"reason": _INCOMPLETE[made.end]} if status == "incomplete" else None,
        "instructions": instructions,
        "max_output_tokens": most,
        "metadata": {},
        "model": model,
        "output": _output(request.number, made, status),
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": {
            "input_tokens": used,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": made.tokens,
            "output_tokens_details": {"reasoning_tokens": made.reasoning_tokens},
            "total_tokens": used + made.tokens,
        },
    }
    return Reply(
        model, used, made.tokens, most or max(made.tokens, content.LONGEST_ANSWER), [document(reply)]
    )


def _output(number: int, made: answers.Written, status: str) -> list[dict[str, Any]]:
    """The items of a response: reasoning, then the message."""
    items: list[dict[str, Any]] = []
    if made.reasoning_tokens:
        items.append({"id": f"rs_{number:08d}", "type": "reasoning", "summary": []})
    if made.text:
        part: dict[str, Any] = {
            "type": "output_text",
            "text": made.text,
            "annotations": [],
            "logprobs": [],
        }
        if made.end == "refusal":
            part = {"type": "refusal", "refusal": made.text}
        message = {"id": f"msg_{number:08d}", "type": "message", "role": "assistant"}
        items.append({**message, "status": status, "content": [part]})
    return items


def _embeddings(request: ProviderRequest) -> Reply:
    model = request.model()
    dimensions = request.count("dimensions", _MOST_DIMENSIONS) or (3072 if "large" in model else 1536)
    is_base64 = request.fields.get("encoding_format") == "base64"
    used, data = 0, list[dict[str, Any]]()
    for number, text in enumerate(_inputs(request.fields.get("input"))):
        # The input may be tokens instead of text.
        used += content.tokens(text) if isinstance(text, str) else len(text)
        floats = content.vector(text if isinstance(text, str) else repr(text), request.seed, dimensions)
        embedding = b64encode(floats).decode() if is_base64 else unpack(f"<{dimensions}f", floats)
        data.append({"object": "embedding", "index": number, "embedding": embedding})
    usage = {"prompt_tokens": used, "total_tokens": used}
    return Reply(
        model, used, 0, 0, [document({"object": "list", "data": data, "model": model, "usage": usage})]
    )


def _inputs(given: Any) -> list[str | list[int]]:
    if isinstance(given, str) and given:
        return [given]
    if not isinstance(given, list) or not 1 <= len(cast("list[Any]", given)) <= _MOST_INPUTS:
        raise invalid("input", f"a string or an array of 1 to {_MOST_INPUTS}", cast("object", given))
    items = cast("list[Any]", given)
    if _are_tokens(items):
        return [items]
    for number, item in enumerate(items):
        if not (isinstance(item, str) and item) and not _are_tokens(item):
            raise invalid(f"input[{number}]", "a non-empty string or tokens", item)
    return items


def _are_tokens(value: Any) -> bool:
    if not isinstance(value, list):
        return False
    items = cast("list[Any]", value)
    return bool(items) and all(type(item) is int for item in items)


def _images(request: ProviderRequest) -> Reply:
    model, prompt = request.model(), request.text("prompt")
    count = request.count("n", _MOST_IMAGES) or 1
    used, made = content.tokens(prompt), count * _IMAGE_TOKENS
    data = [
        {"b64_json": b64encode(content.picture(prompt, request.seed, number)).decode()}
        for number in range(count)
    ]
    usage = {
        "input_tokens": used,
        "input_tokens_details": {"text_tokens": used, "image_tokens": 0},
        "output_tokens": made,
        "total_tokens": used + made,
    }
    reply = {"created": int(request.now), "data": data, "output_format": "png", "usage": usage}
    return Reply(model, used, made, made, [document(reply)])


def _speech(request: ProviderRequest) -> Reply:
    model, text = request.model(), request.text("input")
    request.text("voice")
    if len(text) > _MOST_SPOKEN:
        raise Problem(
            "invalid", f"Invalid 'input': expected at most {_MOST_SPOKEN} characters.", param="input"
        )
    if request.fields.get("response_format") != "wav":
        raise Problem(
            "invalid", "Unsupported value: 'response_format' must be wav here.", param="response_format"
        )
    used = content.tokens(text)
    return Reply(model, used, 0, 0, [content.sound(text, request.seed)], media_type="audio/wav")


# Keys, limits, errors


class OpenAI(Provider):
    """https://platform.openai.com/docs/api-reference"""

    name = "openai"
    models = (
        "gpt-5",
        "gpt-5-mini",
        "gpt-4o-mini",
        "gpt-4o-mini-tts",
        "text-embedding-3-small",
        "gpt-image-1",
    )
    prefixes = ("gpt-", "chatgpt-", "o1", "o3", "o4", "text-embedding-", "dall-e-", "tts-")
    request_id = "x-request-id"
    endpoints: ClassVar[Mapping[str, Endpoint]] = {
        "/v1/chat/completions": _chat,
        "/v1/responses": _responses,
        "/v1/embeddings": _embeddings,
        "/v1/images/generations": _images,
        "/v1/audio/speech": _speech,
    }

    def key(self, headers: Mapping[str, str]) -> str:
        if key := bearer(headers):
            return key
        raise Problem("no_key", "You didn't provide an API key. Provide it as 'Authorization: Bearer KEY'.")

    def limit_headers(self, account: Account, now: float) -> dict[str, str]:
        found: dict[str, str] = {}
        for what, limit in (("requests", "rpm"), ("tokens", "tpm")):
            if bucket := account.buckets.get(limit):
                found[f"x-ratelimit-limit-{what}"] = str(bucket.limit)
                found[f"x-ratelimit-remaining-{what}"] = str(bucket.remaining)
                found[f"x-ratelimit-reset-{what}"] = duration(bucket.seconds_to_full)
        return found

    def listing(self, models: list[str]) -> dict[str, Any]:
        data = [{"id": model, "object": "model", "created": 0, "owned_by": "simulator"} for model in models]
        return {"object": "list", "data": data}

    def error(self, problem: Problem, request_id: str) -> tuple[int, dict[str, Any]]:
        status, kind, name, message = _error_fields(problem)
        error = {"message": message, "type": kind, "param": problem.param, "code": name}
        return status, {"error": error}


def _error_fields(problem: Problem) -> tuple[int, str, str | None, str]:
    """Status, type, code and message of an error."""
    match problem.reason:
        case "invalid":
            return 400, "invalid_request_error", None, problem.message
        case "no_key":
            return 401, "invalid_request_error", None, problem.message
        case "no_model":
            message = f"The model `{problem.model}` does not exist or you do not have access to it."
            return 404, "invalid_request_error", "model_not_found", message
        case "no_path":
            return 404, "invalid_request_error", None, f"Invalid URL ({problem.message})"
        case "no_method":
            return 405, "invalid_request_error", None, f"Not allowed: {problem.message}"
        case "too_large":
            return 413, "invalid_request_error", None, problem.message
        case "rate":
            return 429, *_rate_error(problem.model, problem.rejection)
        case "quota":
            message = "You exceeded your current quota, please check your plan and billing details."
            return 429, "insufficient_quota", "insufficient_quota", message
        case "error":
            message = "The server had an error while processing your request. Sorry about that!"
            return 500, "server_error", None, message
        case "overloaded":
            message = "The engine is currently overloaded, please try again later."
            return 503, "server_error", None, message


def _rate_error(model: str, rejection: Rejection | None) -> tuple[str, str, str]:
    scope = f"for {model} in organization org-simulator"
    if rejection is None:
        message = f"Rate limit reached {scope}. Please try again in 1s. {_LEARN_MORE}"
        return "requests", "rate_limit_exceeded", message
    name = _LIMIT_NAMES[rejection.limit]
    kind = "tokens" if "tokens" in name else "requests"
    if math.isinf(rejection.wait):
        message = (
            f"Request too large {scope} on {name}: Limit {rejection.allowed}, "
            f"Requested {rejection.requested}. "
            f"The input or output tokens must be reduced in order to run successfully. {_LEARN_MORE}"
        )
    else:
        message = (
            f"Rate limit reached {scope} on {name}: Limit {rejection.allowed}, "
            f"Used {rejection.allowed - rejection.remaining}, Requested {rejection.requested}. "
            f"Please try again in {duration(rejection.wait)}. {_LEARN_MORE}"
        )
    return kind, "rate_limit_exceeded", message
