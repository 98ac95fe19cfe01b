"""Slides for the demo and the tests, made in code: PPTX, PDF, PNG and JPEG."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import io
import zipfile
from functools import cache
from xml.sax.saxutils import escape

from PIL import Image, ImageDraw, ImageFont

from penstock.storage.containers import PPTX

TITLES = (
    *("Opening", "Springs", "Brooks", "Meadows", "Willows", "Otters", "Herons", "Mills", "Weirs", "Sluices"),
    *(
        "Bridges",
        "Locks",
        "Canals",
        "Reservoirs",
        "Penstocks",
        "Turbines",
        "Harbours",
        "Tides",
        "Maps",
        "Thanks",
    ),
)
_NAMESPACES = (
    'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main" '
    'xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships" '
    'xmlns:p="http://schemas.openxmlformats.org/presentationml/2006/main"'
)
_RELATIONS = "http://schemas.openxmlformats.org/package/2006/relationships"
_DOCUMENT = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PART = "application/vnd.openxmlformats-officedocument.presentationml."


def make(number: int) -> tuple[str, str, bytes]:
    """A sample slide: its name, its content type and its bytes. The type changes with the number."""
    return _make(number % len(TITLES))


@cache
def _make(number: int) -> tuple[str, str, bytes]:
    title = TITLES[number]
    match number % 4:
        case 0:
            return f"{title}.pptx", PPTX, presentation(title, f"Slide {number + 1}")
        case 1:
            return f"{title}.pdf", "application/pdf", picture(title, "PDF")
        case 2:
            return f"{title}.png", "image/png", picture(title, "PNG")
        case _:
            return f"{title}.jpg", "image/jpeg", picture(title, "JPEG")


def picture(title: str, image_format: str) -> bytes:
    """A slide as a picture, or as a PDF of one page."""
    color = (40 + sum(title.encode()) % 60, 60 + len(title) * 5, 110)
    drawn = Image.new("RGB", (960, 540), color)
    draw = ImageDraw.Draw(drawn)
    draw.text((90, 210), title, (250, 250, 248), ImageFont.load_default(90))
    draw.rectangle((90, 330, 390, 342), (255, 190, 92))
    out = io.BytesIO()
    drawn.save(out, image_format)
    return out.getvalue()


def presentation(title: str, *lines: str) -> bytes:
    """A PPTX file of one slide with a text box."""
    paragraphs = "".join(f"<a:p><a:r><a:t>{escape(text)}</a:t></a:r></a:p>" for text in (title, *lines))
    slide = (
        f"<p:sld {_NAMESPACES}><p:cSld><p:spTree><p:nvGrpSpPr><p:cNvPr id='1' name=''/>"
        "<p:cNvGrpSpPr/><p:nvPr/>"
        "</p:nvGrpSpPr><p:grpSpPr/><p:sp><p:nvSpPr><p:cNvPr id='2' name='Title'/><p:cNvSpPr txBox='1'/>"
        "<p:nvPr/>"
        "</p:nvSpPr><p:spPr><a:xfrm><a:off x='900000' y='900000'/><a:ext cx='7000000' cy='3000000'/></a:xfrm>"
        "<a:prstGeom prst='rect'><a:avLst/></a:prstGeom></p:spPr>"
        f"<p:txBody><a:bodyPr/>{paragraphs}</p:txBody></p:sp></p:spTree></p:cSld></p:sld>"
    )
    parts = {
        "[Content_Types].xml": "<Types xmlns='http://schemas.openxmlformats.org/package/2006/content-types'>"
        "<Default Extension='rels' ContentType='application/vnd.openxmlformats-package.relationships+xml'/>"
        f"<Override PartName='/ppt/presentation.xml' ContentType='{_PART}presentation.main+xml'/>"
        f"<Override PartName='/ppt/slides/slide1.xml' ContentType='{_PART}slide+xml'/></Types>",
        "_rels/.rels": _relation("officeDocument", "ppt/presentation.xml"),
        "ppt/presentation.xml": f"<p:presentation {_NAMESPACES}><p:sldIdLst><p:sldId id='256' r:id='rId1'/>"
        "</p:sldIdLst><p:sldSz cx='9144000' cy='5143500'/><p:notesSz cx='6858000' cy='9144000'/>"
        "</p:presentation>",
        "ppt/_rels/presentation.xml.rels": _relation("slide", "slides/slide1.xml"),
        "ppt/slides/slide1.xml": slide,
    }
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, xml in parts.items():
            archive.writestr(name, "<?xml version='1.0' encoding='UTF-8' standalone='yes'?>" + xml)
    return out.getvalue()


def _relation(kind: str, target: str) -> str:
    return (
        f"<Relationships xmlns='{_RELATIONS}'><Relationship Id='rId1' Type='{_DOCUMENT}/{kind}' "
        f"Target='{target}'/></Relationships>"
    )
