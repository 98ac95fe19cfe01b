"""Settings from environment variables: the URLs of language models.

`VIDEO_IDEAS_URLS` has the base URLs of OpenAI-compatible providers:
`simulator=http://127.0.0.1:8090/v1 house=http://10.0.0.7:8000/v1`. Providers known by name need none.
"""

from __future__ import annotations

import os

from penstock import Fail
from penstock.apps.addresses import SIMULATOR_URL
from penstock.providers.hosts import OWN

VARIABLE = "VIDEO_IDEAS_URLS"
CHECKS = "VIDEO_IDEAS_CHECK_SECONDS"
"""Ages in seconds at which a film at a provider is checked without a webhook."""


def url_of(provider: str) -> str | None:
    """The base URL of a provider; None for the default of its client."""
    name = provider.partition("/")[0]
    pairs = (pair.partition("=") for pair in os.environ.get(VARIABLE, "").split())
    urls = {"simulator": SIMULATOR_URL} | {word: url for word, _, url in pairs}
    if not urls.get(name) and name not in OWN:
        raise Fail(f"{VARIABLE} has no URL for {name!r}", code="unknown_address")
    return urls.get(name) or None


def check_seconds() -> list[float]:
    """When to ask a provider about a film."""
    return [float(each) for each in os.environ.get(CHECKS, "20 40 60 120 180 300").split()]
