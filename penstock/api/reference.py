"""`/docs` and `/redoc`: the routes of the API on one page, and `/openapi.json`, where people look for them.

The pages that FastAPI has built in load scripts from other hosts. This one needs no script.
"""

from __future__ import annotations

from html import escape
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
dt { margin-top: .7rem; } dd { margin: 0 0 0 1rem; opacity: .85; }
code { font: 14px/1.4 ui-monospace, monospace; overflow-wrap: anywhere; } b { font-weight: 600; }
"""


def add_to(app: FastAPI) -> None:
    """Add the pages."""

    async def reference(request: Request) -> Response:
        return HTMLResponse(
            _page(app.openapi(), f"{request.scope.get('root_path', '')}/api/openapi.json"),
            headers={"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"},
        )

    async def schema(request: Request) -> Response:
        return RedirectResponse(f"{request.scope.get('root_path', '')}/api/openapi.json", 307)

    for path in ("/docs", "/redoc"):
        app.add_api_route(path, reference, include_in_schema=False)
    app.add_api_route("/openapi.json", schema, include_in_schema=False)


def _page(document: dict[str, Any], url: str) -> str:
    groups: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            lines = groups.setdefault(next(iter(route.get("tags") or ["other"])), [])
            about = escape(route.get("description") or route.get("summary") or "")
            names = [
                parameter["name"] for parameter in route.get("parameters", []) if parameter["in"] == "query"
            ]
            query = f"<br>Query: <code>{escape(', '.join(names))}</code>" if names else ""
            lines.append(
                f"<dt><code><b>{method.upper()}</b> {escape(path)}</code></dt><dd>{about}{query}</dd>"
            )
    sections = "".join(f"<h2>{escape(tag)}</h2><dl>{''.join(lines)}</dl>" for tag, lines in groups.items())
    title = f"{escape(document['info']['title'])} API {escape(document['info']['version'])}"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head>'
        f"<body><h1>{title}</h1><p>{escape(document['info'].get('summary') or '')} "
        f'Schemas of requests and responses: <a href="{escape(url)}">openapi.json</a>.</p>{sections}'
        "</body></html>"
    )
