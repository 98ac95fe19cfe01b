"""Preferences in request headers: schema, response format, count."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request

from penstock.api.rest.errors import RestError, shortened

PLATFORM = "penstock"
DEFAULT = "public"
"""What clients send by default. Means the app's schema, then schema penstock."""

_SINGLE = "application/vnd.pgrst.object+json"
_PLAIN = ("application/json", "application/vnd.pgrst.array+json", "application/*", "*/*")
# Preferences that are supported or harmless to ignore. With handling=strict, others are rejected.
_PREFERENCES = {
    "count": ("exact", "planned", "estimated"),
    "return": ("minimal", "representation", "headers-only"),
    "handling": ("strict", "lenient"),
    "missing": ("default", "null"),
    "resolution": ("merge-duplicates", "ignore-duplicates"),
}


@dataclass(frozen=True, slots=True)
class Preferences:
    """How the caller wants the response."""

    is_single: bool
    is_stripped: bool
    """Whether null fields are omitted."""
    is_counted: bool
    is_minimal: bool
    schemas: tuple[str, ...]
    """Where to look for a name, in this order."""
    is_represented: bool = False
    """Whether a write returns the written rows."""
    resolution: str | None = None
    """What an insert does with a row that exists."""
    is_defaulted: bool = False
    """Whether a field that an object lacks gets the column's default."""

    @property
    def headers(self) -> dict[str, str]:
        """The response header that lists the applied preferences."""
        applied = [
            *(["count=exact"] if self.is_counted else []),
            *(["return=minimal"] if self.is_minimal else []),
        ]
        return {"Preference-Applied": ", ".join(applied)} if applied else {}

    @property
    def content_type(self) -> str:
        kind = _SINGLE if self.is_single else "application/json"
        return f"{kind}; charset=utf-8"


def read(request: Request, app_schema: str | None) -> Preferences:
    """Parse the headers. Raises RestError if they are invalid."""
    schemas = _schemas(request, app_schema)
    is_single, is_stripped = _form(request.headers.get("accept") or "*/*")
    preferences = _preferences(request.headers.getlist("prefer"))
    return Preferences(
        is_single=is_single,
        is_stripped=is_stripped,
        # The exact count also satisfies a request for an estimate.
        is_counted="count" in preferences,
        is_minimal=preferences.get("return") == "minimal",
        schemas=schemas,
        is_represented=preferences.get("return") == "representation",
        resolution=preferences.get("resolution"),
        is_defaulted=preferences.get("missing") == "default",
    )


def _schemas(request: Request, app_schema: str | None) -> tuple[str, ...]:
    name = "accept-profile" if request.method in ("GET", "HEAD") else "content-profile"
    known: dict[str, tuple[str, ...]] = {PLATFORM: (PLATFORM,), DEFAULT: (PLATFORM,)}
    if app_schema is not None:
        known |= {DEFAULT: (app_schema, PLATFORM), app_schema: (app_schema,)}
    chosen = request.headers.getlist(name) or [DEFAULT]
    for schema in chosen:
        if schema not in known:
            raise RestError(
                406,
                "PGRST106",
                f"Invalid schema: {shortened(schema)}",
                hint=f"Only the following schemas are exposed: {', '.join(known)}",
            )
    return known[chosen[0]]


def _form(accept: str) -> tuple[bool, bool]:
    """Whether the caller wants one object, and whether without nulls."""
    for choice in accept.split(","):
        kind, *parameters = (part.strip().lower() for part in choice.split(";"))
        if kind == _SINGLE or kind in _PLAIN:
            return kind == _SINGLE, "nulls=stripped" in parameters
    raise RestError(406, "PGRST107", f"None of these media types are available: {shortened(accept)}")


def _preferences(headers: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    unknown: list[str] = []
    for text in ",".join(headers).split(","):
        name, _, value = (part.strip() for part in text.partition("="))
        if value in _PREFERENCES.get(name, ()):
            # The first of several values wins (RFC 7240).
            found.setdefault(name, value)
        elif name:
            unknown.append(text.strip())
    if unknown and found.get("handling") == "strict":
        raise RestError(
            400,
            "PGRST122",
            "Invalid preferences given with handling=strict",
            details=f"Invalid preferences: {shortened(', '.join(unknown))}",
        )
    return found
