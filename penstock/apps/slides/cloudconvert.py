"""A client of CloudConvert: create a job, find it by its tag, ask for it, cancel it, upload and download.

Does not use their SDK, which compares signatures in variable time and repeats requests without being asked.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx

from penstock import Fail, Retry
from penstock.apps.slides.settings import Settings
from penstock.settings import is_loopback

MAX_BYTES = 20 << 20
"""The largest thumbnail that is downloaded."""
_REFUSED = (400, 401, 403, 404, 413, 422)


@asynccontextmanager
async def connect(chosen: Settings) -> AsyncGenerator[Client]:
    """A client for the block. Network errors become Retry, and answers that no retry can fix Fail."""
    try:
        async with httpx.AsyncClient(
            timeout=chosen.answer_timeout,
            trust_env=not is_loopback(urlsplit(chosen.url).hostname or ""),
            follow_redirects=False,
        ) as http:
            yield Client(http, chosen)
    except httpx.HTTPStatusError as error:
        if error.response.status_code in _REFUSED:
            raise Fail(_message(error.response), code="cloudconvert_api_error") from error
        raise
    except httpx.TransportError as error:
        text = f"{type(error).__name__}: {error}"[:500]
        raise Retry(text, code="network_error") from error


class Client:
    """The calls."""

    def __init__(self, http: httpx.AsyncClient, chosen: Settings) -> None:
        self._http, self._chosen = http, chosen

    async def create(self, tag: str, *, width: int = 480) -> dict[str, Any]:
        """Create the job of a thumbnail. It waits for its file."""
        body: dict[str, Any] = {
            "tag": tag,
            "tasks": {
                "import": {"operation": "import/upload"},
                "thumb": {
                    "operation": "thumbnail",
                    "input": "import",
                    "output_format": "png",
                    "width": width,
                },
                "export": {"operation": "export/url", "input": "thumb"},
            },
        }
        if self._chosen.webhook_url is not None:
            body["webhook_url"] = self._chosen.webhook_url
        return (await self._call("POST", "/jobs", json=body))["data"]

    async def find(self, tag: str) -> str | None:
        """The id of the job with this tag."""
        found = (await self._call("GET", "/jobs", params={"filter[tag]": tag}))["data"]
        return found[0]["id"] if found else None

    async def get(self, job_id: str) -> dict[str, Any] | None:
        """The job; None if CloudConvert has none, because it was deleted."""
        try:
            return (await self._call("GET", f"/jobs/{job_id}"))["data"]
        except httpx.HTTPStatusError as error:
            if error.response.status_code == 404:
                return None
            raise

    async def cancel(self, job_id: str) -> None:
        """Delete the job."""
        try:
            await self._call("DELETE", f"/jobs/{job_id}")
        except httpx.HTTPStatusError as error:
            if error.response.status_code != 404:
                raise

    async def upload(self, job: dict[str, Any], name: str, data: bytes) -> None:
        """Send the file, unless the job has it."""
        task = next(task for task in job["tasks"] if task["name"] == "import")
        if task["status"] != "waiting":
            return
        form = task["result"]["form"]
        self._check(form["url"])
        response = await self._http.post(
            form["url"], data=form["parameters"], files={"file": (name or "slide", data)}
        )
        # Another worker was faster: 422.
        if response.status_code != 422:
            response.raise_for_status()

    async def download(self, job: dict[str, Any]) -> bytes:
        """The thumbnail of a finished job."""
        [file] = next(task for task in job["tasks"] if task["name"] == "export")["result"]["files"][:1]
        self._check(file["url"])
        async with self._http.stream("GET", file["url"]) as response:
            if response.status_code in (403, 404, 410):
                raise Retry("the URL of the thumbnail has expired", code="network_error")
            response.raise_for_status()
            data = b""
            async for chunk in response.aiter_bytes():
                data += chunk
                if len(data) > MAX_BYTES:
                    raise Fail(f"the thumbnail is larger than {MAX_BYTES >> 20} MB", code="invalid_format")
        return data

    def _check(self, url: str) -> None:
        """Fail for an address of a file that is not encrypted; a simulator's is on this machine, as it is."""
        parts, own = urlsplit(url), urlsplit(self._chosen.url)
        is_simulated = is_loopback(own.hostname or "") and is_loopback(parts.hostname or "")
        if parts.scheme != "https" and not is_simulated:
            raise Fail("CloudConvert named an address without https", code="cloudconvert_api_error")

    async def _call(self, method: str, path: str, **values: Any) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self._chosen.key}"}
        response = await self._http.request(method, self._chosen.url + path, headers=headers, **values)
        response.raise_for_status()
        return response.json() if response.content else {}


def failure(job: dict[str, Any]) -> tuple[str, str]:
    """The error type and the message of a failed job."""
    failed: list[dict[str, Any]] = [task for task in job["tasks"] if task["status"] == "error"]
    task = failed[0] if failed else {}
    code = "invalid_format" if str(task.get("code")).startswith("INVALID") else "cloudconvert_api_error"
    return code, str(task.get("message") or task.get("code") or "the conversion failed")[:1000]


def _message(response: httpx.Response) -> str:
    try:
        found = response.json()
        return f"CloudConvert answered {response.status_code}: {found['message']}"[:1000]
    except (ValueError, KeyError, TypeError):
        return f"CloudConvert answered {response.status_code}"
