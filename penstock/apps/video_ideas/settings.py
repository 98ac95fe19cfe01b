"""Settings from environment variables: the URLs of language models.

`VIDEO_IDEAS_URLS` has the base URLs of OpenAI-compatible providers:
`simulator=http://127.0.0.1:8090/v1 house=http://10.0.0.7:8000/v1`. OpenAI and Anthropic need none.
"""

from __future__ import annotations

import os

from penstock import Fail
from penstock.apps.asking import SIMULATOR_URL

VARIABLE = "VIDEO_IDEAS_URLS"
_OWN = ("openai", "anthropic")


def url_of(provider: str) -> str | None:
    """The base URL of a provider; None for the default of its client."""
    name = provider.partition("/")[0]
    pairs = (pair.partition("=") for pair in os.environ.get(VARIABLE, "").split())
    urls = {"simulator": SIMULATOR_URL} | {word: url for word, _, url in pairs}
    if not urls.get(name) and name not in _OWN:
        raise Fail(f"{VARIABLE} has no URL for {name!r}", code="unknown_address")
    return urls.get(name) or None
