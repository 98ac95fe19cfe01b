"""The Anthropic API: messages and token counting."""

from __future__ import annotations

import json
import math
from base64 import b64decode
from collections.abc import Mapping
from datetime import UTC, datetime
from struct import unpack
from typing import Any, ClassVar, cast

from penstock.simulator import answers, content, documents
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
)

_IMAGES = ("image/jpeg", "image/png", "image/gif", "image/webp")
_ENDS = {"stop": "end_turn", "length": "max_tokens", "refusal": "refusal", "filter": "refusal"}
_LIMIT_NAMES = {
    "rpm": "requests per minute",
    "tpm": "tokens per minute",
    "itpm": "input tokens per minute",
    "otpm": "output tokens per minute",
    "rph": "requests per hour",
    "tph": "tokens per hour",
}


def moment(seconds: float) -> str:
    """A time of the simulator's clock as RFC 3339."""
    return datetime.fromtimestamp(math.ceil(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# Endpoints


def count_tokens(request: ProviderRequest) -> Reply:
    """Count the tokens of a prompt. Not rate limited."""
    model, messages = request.model(), request.messages("messages")
    used = content.tokens(_prompt(request, messages))
    return Reply(model, used, 0, 0, [document({"input_tokens": used})])


def _messages(request: ProviderRequest) -> Reply:
    model, messages = request.model(), request.messages("messages")
    most = request.count("max_tokens", MOST_TOKENS)
    if most is None:
        raise Problem("invalid", "max_tokens: Field required", param="max_tokens")
    prompt = _prompt(request, messages)
    tool = _forced_tool(request)
    used = content.tokens(prompt) + _image_tokens(messages)
    if tool is None:
        config: Any = request.fields.get("output_config")
        form: Any = cast("dict[str, Any]", config).get("format") if isinstance(config, dict) else None
        schema = None if form is None else answers.schema_of(form, "output_config.format")
        made = answers.write(request, prompt, most, schema)
        blocks, end = _blocks(made), _ENDS[made.end]
    else:
        made = answers.Written(documents.fill(tool["input_schema"], prompt, request.seed), "stop", 0)
        block = {"type": "tool_use", "id": f"toolu_{request.number:08d}", "name": tool["name"]}
        blocks, end = [{**block, "input": json.loads(made.text)}], "tool_use"
    message: dict[str, Any] = {
        "id": f"msg_{request.number:08d}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": blocks,
        "stop_reason": end,
        "stop_sequence": None,
        "stop_details": {"type": "refusal", "category": None, "explanation": made.text}
        if _ENDS[made.end] == "refusal"
        else None,
        "usage": {
            "input_tokens": used,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": made.tokens,
            "output_tokens_details": {"thinking_tokens": made.reasoning_tokens},
            "service_tier": "standard",
        },
    }
    is_stream = request.flag("stream")
    if is_stream and tool is not None:
        raise Problem("invalid", "stream: not supported with tool_choice here", param="stream")
    parts = _events(message) if is_stream else [document(message)]
    return Reply(model, used, made.tokens, most, parts, is_stream)


def _blocks(made: answers.Written) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if made.reasoning_tokens:
        blocks.append({"type": "thinking", "thinking": "", "signature": "simulated"})
    if made.text and _ENDS[made.end] != "refusal":
        blocks.append({"type": "text", "text": made.text})
    return blocks


def _forced_tool(request: ProviderRequest) -> dict[str, Any] | None:
    """The tool that the model has to use, if the request names one."""
    choice: Any = request.fields.get("tool_choice")
    if not isinstance(choice, dict) or cast("dict[str, Any]", choice).get("type") != "tool":
        return None
    wanted = cast("dict[str, Any]", choice).get("name")
    tools: Any = request.fields.get("tools")
    for tool in cast("list[Any]", tools) if isinstance(tools, list) else ():
        if isinstance(tool, dict):
            found = cast("dict[str, Any]", tool)
            if found.get("name") == wanted and isinstance(found.get("input_schema"), dict):
                return found
    raise Problem("invalid", f"tool_choice: tool '{wanted}' not found in tools", param="tool_choice")


def _image_tokens(messages: list[dict[str, Any]]) -> int:
    """A 750th of the pixels of a PNG; other images count as 512 pixels square."""
    count = 0
    for message in messages:
        parts: Any = message.get("content")
        for part in cast("list[Any]", parts) if isinstance(parts, list) else ():
            block = cast("dict[str, Any]", part) if isinstance(part, dict) else {}
            if block.get("type") != "image":
                continue
            source: Any = block.get("source")
            given = cast("dict[str, Any]", source) if isinstance(source, dict) else {}
            try:
                head = b64decode(str(given.get("data", ""))[:44], validate=True)
            except ValueError:
                head = b""
            if not head or given.get("media_type") not in _IMAGES:
                raise Problem("invalid", "image.source: Could not process image", param="messages")
            width, height = unpack(">II", head[16:24]) if head[:4] == b"\x89PNG" else (512, 512)
            count += width * height // 750
    return count


def _prompt(request: ProviderRequest, messages: list[dict[str, Any]]) -> str:
    return "\n".join(content.texts([request.fields.get("system"), messages]))


def _events(message: dict[str, Any]) -> list[bytes]:
    usage = message["usage"]
    text = "".join(block.get("text", "") for block in message["content"])
    start: dict[str, Any] = {
        **message,
        "content": [],
        "stop_reason": None,
        "usage": {**usage, "output_tokens": 1},
    }
    block = {"index": 0, "content_block": {"type": "text", "text": ""}}
    deltas = [{"index": 0, "delta": {"type": "text_delta", "text": piece}} for piece in content.pieces(text)]
    end = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    return [
        _event("message_start", {"message": start}),
        _event("content_block_start", block),
        _event("ping", {}),
        *(_event("content_block_delta", delta) for delta in deltas),
        _event("content_block_stop", {"index": 0}),
        _event("message_delta", {"delta": end, "usage": {"output_tokens": usage["output_tokens"]}}),
        _event("message_stop", {}),
    ]


def _event(name: str, fields: dict[str, Any]) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + document({"type": name, **fields}) + b"\n\n"


# Keys, limits, errors


class Anthropic(Provider):
    """https://docs.claude.com/en/api"""

    name = "anthropic"
    models = ("claude-opus-4-5", "claude-sonnet-4-5", "claude-haiku-4-5")
    prefixes = ("claude-",)
    request_id = "request-id"
    endpoints: ClassVar[Mapping[str, Endpoint]] = {"/v1/messages": _messages}

    def key(self, headers: Mapping[str, str]) -> str:
        key = headers.get("x-api-key", "").strip() or bearer(headers)
        if not key:
            raise Problem("no_key", "x-api-key header is required")
        if not headers.get("anthropic-version"):
            raise Problem("invalid", "anthropic-version: header is required")
        return key

    def limit_headers(self, account: Account, now: float) -> dict[str, str]:
        found: dict[str, str] = {}
        get = account.buckets.get
        # The limit of all tokens is its own limit, or the sum of input and output limits.
        both = [bucket for bucket in (get("itpm"), get("otpm")) if bucket]
        for what, buckets in (
            ("requests", [bucket for bucket in (get("rpm"),) if bucket]),
            ("tokens", [bucket for bucket in (get("tpm"),) if bucket] or (both if len(both) == 2 else [])),
            ("input-tokens", [bucket for bucket in (get("itpm"),) if bucket]),
            ("output-tokens", [bucket for bucket in (get("otpm"),) if bucket]),
        ):
            if buckets:
                remaining = sum(bucket.remaining for bucket in buckets)
                if what != "requests":
                    remaining = (remaining + 500) // 1000 * 1000
                reset = max(bucket.seconds_to_full for bucket in buckets)
                found[f"anthropic-ratelimit-{what}-limit"] = str(sum(bucket.limit for bucket in buckets))
                found[f"anthropic-ratelimit-{what}-remaining"] = str(remaining)
                found[f"anthropic-ratelimit-{what}-reset"] = moment(now + reset)
        return found

    def listing(self, models: list[str]) -> dict[str, Any]:
        data = [
            {"type": "model", "id": model, "display_name": model, "created_at": moment(0)} for model in models
        ]
        first, last = (models[0], models[-1]) if models else (None, None)
        return {"data": data, "has_more": False, "first_id": first, "last_id": last}

    def error(self, problem: Problem, request_id: str) -> tuple[int, dict[str, Any]]:
        status, kind, message = _error_fields(problem)
        error: dict[str, Any] = {"type": kind, "message": message}
        if problem.reason == "quota":
            error["details"] = {"error_code": "enforced_spend_limit_reached"}
        return status, {"type": "error", "error": error, "request_id": request_id}


def _error_fields(problem: Problem) -> tuple[int, str, str]:
    """Status, type and message of an error."""
    match problem.reason:
        case "invalid":
            return 400, "invalid_request_error", problem.message
        case "no_key":
            return 401, "authentication_error", problem.message
        case "no_model":
            return 404, "not_found_error", f"model: {problem.model}"
        case "no_path":
            return 404, "not_found_error", "Not Found"
        case "no_method":
            return 405, "invalid_request_error", "Method Not Allowed"
        case "too_large":
            return 413, "request_too_large", problem.message
        case "rate":
            return 429, "rate_limit_error", _rate_message(problem.rejection)
        case "quota":
            return 429, "rate_limit_error", "You have reached your specified API usage limits."
        case "error":
            return 500, "api_error", "Internal server error"
        case "overloaded":
            return 529, "overloaded_error", "Overloaded"


def _rate_message(rejection: Rejection | None) -> str:
    if rejection is None:
        return "This request would exceed your organization's rate limit. Please try again later."
    if rejection.limit == "concurrency":
        return "Number of concurrent connections has exceeded your rate limit. Please try again later."
    return (
        f"This request would exceed your organization's rate limit of {rejection.allowed:,} "
        f"{_LIMIT_NAMES[rejection.limit]}. You can see the response headers for current usage. Please reduce "
        "the prompt length or the maximum tokens requested, or try again later."
    )
