"""What the environment says: where the models are.

`VIDEO_IDEAS_URLS` names the base URL of each provider that speaks as OpenAI does and has none of its own:
`simulator=http://127.0.0.1:8090/v1 house=http://10.0.0.7:8000/v1`. Who is not in it is asked at its own
address: OpenAI and Anthropic.
"""

from __future__ import annotations

import os

from penstock import Fail
from penstock.apps.asking import SIMULATOR_URL

VARIABLE = "VIDEO_IDEAS_URLS"
_OWN = ("openai", "anthropic")


def url_of(provider: str) -> str | None:
    """Where a provider is; None: at its client's own address."""
    name = provider.partition("/")[0]
    pairs = (pair.partition("=") for pair in os.environ.get(VARIABLE, "").split())
    urls = {"simulator": SIMULATOR_URL} | {word: url for word, _, url in pairs}
    if not urls.get(name) and name not in _OWN:
        raise Fail(f"{VARIABLE} does not say where {name} is", code="unknown_address")
    return urls.get(name) or None
