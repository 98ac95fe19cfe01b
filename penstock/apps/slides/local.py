"""Converts slides on this machine: pictures with Pillow, PDF with PDFium, presentations with LibreOffice.

Runs in a subprocess of the worker. LibreOffice comes from the system: `apt install libreoffice-impress`.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

PROVIDER = "libreoffice/local"
SECONDS = 120


class Missing(Exception):
    """LibreOffice is not installed."""

    code = "no_converter"


class Damaged(Exception):
    """The file cannot be read."""

    code = "invalid_format"


def soffice() -> str | None:
    """The path of LibreOffice, if it is installed."""
    return shutil.which("soffice") or shutil.which("libreoffice")


def convert(source: str, mime_type: str, target: str, width: int = 480) -> None:
    """Write the first page of a file to `target` as PNG."""
    from PIL import Image

    try:
        if mime_type.startswith("image/"):
            with Image.open(source) as opened:
                picture = opened.convert("RGB")
        elif mime_type == "application/pdf":
            picture = _page(source, width)
        else:
            with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
                picture = _page(_presentation(source, folder), width)
    except (Missing, Damaged):
        raise
    except Exception as error:
        # Pillow and PDFium raise many types for damaged files.
        raise Damaged(f"the file cannot be read: {error}"[:500]) from error
    size = (width, max(1, round(picture.height * width / picture.width)))
    picture.resize(size, Image.Resampling.LANCZOS).save(target, "PNG")


def _page(path: str, width: int) -> Any:
    import pypdfium2

    with pypdfium2.PdfDocument(path) as document:
        page = document[0]
        return page.render(scale=width / page.get_width()).to_pil().convert("RGB")


def _presentation(source: str, folder: str) -> str:
    program = soffice()
    if program is None:
        raise Missing("LibreOffice is not installed: apt install libreoffice-impress")
    # A profile of its own, because two LibreOffices cannot share one.
    done = subprocess.run(
        [program, f"-env:UserInstallation=file://{folder}/profile", "--headless", "--norestore",
         "--convert-to", "pdf", "--outdir", folder, source],
        capture_output=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    made = next(Path(folder).glob("*.pdf"), None)
    if made is None:
        raise Damaged(f"LibreOffice could not read the file: {done.stderr.decode(errors='replace')[-300:]}")
    return str(made)
