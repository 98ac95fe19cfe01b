"""Files of object storage in pages."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from fastapi import Request

from penstock.api.artifacts import linked
from penstock.types import Artifact


async def allow_file_origin(request: Request, files: Sequence[Artifact]) -> None:
    """Allow the page to show files from object storage on another host."""
    if files:
        [first] = await linked(request, list(files[:1]))
        parts = urlsplit(first.url)
        if parts.netloc != request.headers.get("host"):
            request.state.file_origins = (f"{parts.scheme}://{parts.netloc}",)
