"""The most that a call of a language model may be billed for: what adapters allow and tasks reserve."""

from __future__ import annotations

from penstock.providers.catalogue import ROOM_TO_THINK, THINKERS, room_to_think, shipped
from penstock.providers.interface import TextRequest


def tokens(text: str) -> int:
    """An upper estimate of a text's tokens."""
    return len(text.encode()) // 2


def input_tokens(request: TextRequest) -> int:
    """An upper estimate of the prompt's tokens, without pictures."""
    return tokens(request.instructions + request.prompt + "".join(text for _, text in request.turns))


def output_tokens(request: TextRequest, provider: str | None = None) -> int:
    """The most tokens that an answer of `name/model` has, with reasoning. Adapters send it as the limit."""
    return request.max_tokens + (room_to_think(provider) if provider else 0)


def most_units(request: TextRequest, provider: str | None = None) -> dict[str, int]:
    """The most units that `ask` is billed for by `name/model`, for the task's option `units`.

    Without a provider they have no room for reasoning. A task with a route gets it from `reasoning_units`.
    """
    return {"input_tokens": input_tokens(request), "output_tokens": output_tokens(request, provider)}


def reasoning_units() -> dict[str, dict[str, int]]:
    """Room for reasoning by provider, for `extra_units` of a route: a task reserves that of its provider."""
    known = {f"{name}/*": ROOM_TO_THINK for name in THINKERS}
    for name, model in shipped().models.items():
        if "text" in model.media and model.reasoning_tokens != known.get(f"{name.partition('/')[0]}/*", 0):
            known[name] = model.reasoning_tokens
    return {name: {"output_tokens": room} for name, room in known.items()}
