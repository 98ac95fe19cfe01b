"""Thumbnails that the simulated CloudConvert returns: real images of the first page.

Pictures are scaled and PDF files rendered. Of a PPTX file the text of the first slide is drawn, because
nothing here can lay out a presentation; other files become a card with their name.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import hashlib
import io
import re
import zipfile
from typing import Any

from penstock.errors import Invalid

_MAX_XML = 4 << 20
_TEXT = re.compile(rb"<a:t>([^<]{0,500})</a:t>")
_GROUNDS = ((28, 60, 92), (74, 40, 88), (24, 82, 66), (112, 58, 34), (48, 52, 108))


def render(data: bytes, name: str, *, width: int = 480, image_format: str = "png") -> bytes:
    """The first page of a file as a picture. Raises Invalid for a file that cannot be read."""
    try:
        from PIL import Image
    except ImportError as error:
        raise Invalid("thumbnails need Pillow: pip install 'penstock[apps]'") from error
    try:
        if data.startswith((b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff")):
            picture = Image.open(io.BytesIO(data)).convert("RGB")
        elif data.startswith(b"%PDF-"):
            picture = _pdf(data, width)
        elif data.startswith(b"PK"):
            picture = _card(_slide_text(data) or [name], width)
        elif data.startswith(b"\xd0\xcf\x11\xe0"):
            picture = _card([name], width)
        else:
            raise Invalid("the input file is of an unsupported type")
    except Invalid:
        raise
    except Exception as error:
        # Pillow, PDFium and zipfile raise many types for damaged files.
        raise Invalid("the input file is damaged") from error
    picture = picture.resize((width, max(1, round(picture.height * width / picture.width))))
    out = io.BytesIO()
    picture.save(out, "JPEG" if image_format in ("jpg", "jpeg") else "PNG")
    return out.getvalue()


def _pdf(data: bytes, width: int) -> Any:
    import pypdfium2

    with pypdfium2.PdfDocument(data) as document:
        page = document[0]
        return page.render(scale=width / page.get_width()).to_pil().convert("RGB")


def _slide_text(data: bytes) -> list[str]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        names = sorted(name for name in archive.namelist() if re.fullmatch(r"ppt/slides/slide\d+\.xml", name))
        if not names or archive.getinfo(names[0]).file_size > _MAX_XML:
            return []
        found = _TEXT.findall(archive.read(names[0]))
    entities = {b"&lt;": b"<", b"&gt;": b">", b"&quot;": b'"', b"&amp;": b"&"}
    lines: list[str] = []
    for text in found:
        for entity, character in entities.items():
            text = text.replace(entity, character)
        lines.append(text.decode("utf-8", "replace"))
    return lines


def _card(lines: list[str], width: int) -> Any:
    """Lines on a colored ground, 16:9."""
    from PIL import Image, ImageDraw, ImageFont

    height = width * 9 // 16
    number = hashlib.sha256("\n".join(lines).encode("utf-8", "replace")).digest()[0]
    picture = Image.new("RGB", (width, height), _GROUNDS[number % len(_GROUNDS)])
    draw = ImageDraw.Draw(picture)
    top = height // 5
    for index, line in enumerate(lines[:6]):
        size = width // (14 if index == 0 else 24)
        shown = "".join(c if c.isprintable() and ord(c) < 0x250 else "?" for c in line)[:60]
        draw.text((width // 12, top), shown, (250, 250, 248), ImageFont.load_default(size))
        top += round(size * 1.6)
    draw.rectangle((0, height - height // 30, width, height), (255, 190, 92))
    return picture
