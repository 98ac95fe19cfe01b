"""Calls of adapters without an official client here: JSON over HTTP, with the key in a header."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx

from penstock.providers import failures
from penstock.providers.connection import Connection, host_of
from penstock.sdk.context import Fail
from penstock.settings import is_loopback

MOST_BYTES = 200 << 20
"""The largest file that is downloaded."""


async def call(
    connection: Connection,
    method: str,
    path: str,
    *,
    key_header: str,
    key_prefix: str = "",
    headers: Mapping[str, str] | None = None,
    **values: Any,
) -> httpx.Response:
    """Send a request to a path below the provider's address. Raises errors as `failures.mapped` does."""
    sent = dict(headers or {})
    if connection.secret is not None:
        sent[key_header] = key_prefix + connection.secret
    with failures.mapped(connection.provider):
        async with connection.http() as http:
            response = await http.request(method, connection.url + path, headers=sent, **values)
        if not response.is_success:
            raise httpx.HTTPStatusError(
                f"{connection.provider} answered {response.status_code}: {response.text[:500]}",
                request=response.request,
                response=response,
            )
    return response


async def download(connection: Connection, url: str) -> bytes:
    """A file that the provider made, without the key: it may be on another host."""
    if not url.startswith("https://") and not (connection.is_local and is_loopback(host_of(url))):
        raise Fail(f"{connection.provider} made a file at an address without https", code="bad_answer")
    with failures.mapped(connection.provider):
        async with connection.http() as http, http.stream("GET", url) as response:
            if not response.is_success:
                raise httpx.HTTPStatusError(
                    f"the file of {connection.provider} answered {response.status_code}",
                    request=response.request,
                    response=response,
                )
            failures.check_file(connection.provider, response.headers.get("content-type", ""))
            data = bytearray()
            async for part in response.aiter_bytes():
                data += part
                if len(data) > MOST_BYTES:
                    raise Fail(f"the file is larger than {MOST_BYTES >> 20} MB", code="file_too_large")
    if not data:
        failures.empty(connection.provider)
    return bytes(data)
