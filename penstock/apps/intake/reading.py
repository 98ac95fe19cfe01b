"""Reads pages: the text layer of a PDF with its boxes, or OCR of the page's image. Runs in subprocesses.

Boxes are `[left, top, right, bottom]` as parts of the page, from 0 to 1. PDFium is not thread-safe, so each
call opens the document in a process of its own. The OCR models are part of the package `rapidocr`: nothing is
downloaded.
"""

from __future__ import annotations

import ctypes
import importlib
import io
import math
import statistics
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from penstock import Fail
from penstock.apps.intake.limits import TooMuchWork, limited

DPI = 200
LEAST_CHARACTERS = 16
"""A page with fewer characters in its text layer is read by OCR."""
LEAST_CHARACTERS_OF_SCAN = 300
"""The same for a page that is mainly an image: a fax server may have stamped a line of text on a scan."""
_SCAN_COVER = 0.5
"""Images cover at least this part of a scanned page."""
POOR_SCORE = 0.80
SECONDS = 600
_MEMORY = 3 << 30
_LONGEST_SIDE = 4000
_GRID = 100_000
LEAST_SKEW, MOST_SKEW = 0.8, 20.0
"""Degrees. Below, lines do not overlap; above, it is no skew."""
_BICUBIC = 3
LINE_COLOR = (70, 110, 200)
BOX_COLOR = (200, 30, 30)
_LEAST_CONTRAST = 25
"""A page whose darkest part differs less than this from its paper (of 255) is blank."""


def read(path: str, content_type: str, first: int, last: int, has_ocr: bool = True) -> list[dict[str, Any]]:
    """Read the pages `first` to `last`, counted from 1; without OCR, scans get the method `none`."""
    try:
        with limited(SECONDS, _MEMORY):
            return [_read_page(path, content_type, number, has_ocr) for number in range(first, last + 1)]
    except MemoryError:
        raise Fail(f"pages {first} to {last} need too much memory", code="document_too_large") from None
    except TooMuchWork as error:
        raise Fail(f"pages {first} to {last}: {error}", code="document_too_large") from None


def image(
    path: str,
    content_type: str,
    number: int,
    dpi: int = 100,
    boxes: Sequence[Sequence[float]] = (),
    lines: Sequence[Sequence[float]] = (),
    rotation: float = 0,
) -> bytes:
    """A page as PNG, turned as it was read, for people and for vision models.

    `lines` are drawn thin and blue (where text was read), `boxes` thick and red (where facts come from).
    """
    from PIL import ImageDraw

    target = io.BytesIO()
    with limited(60):
        picture = _render(path, content_type, number, dpi)
        picture = _turned(picture, rotation)
        draw = ImageDraw.Draw(picture)
        width = max(2, picture.width // 400)
        for drawn, color, thickness in ((lines, LINE_COLOR, 1), (boxes, BOX_COLOR, width)):
            for box in drawn:
                draw.rectangle(_in_pixels(box, picture.size), outline=color, width=thickness)
        picture.save(target, "PNG")
    return target.getvalue()


def is_poor(page: dict[str, Any]) -> bool:
    """Whether OCR read a page poorly: with low scores, or next to nothing on a page that is not blank."""
    characters = sum(len(word["text"]) for word in page["words"])
    return page["score"] < POOR_SCORE or (page["method"] == "ocr" and 0 < characters < LEAST_CHARACTERS)


def scan(path: str, content_type: str, number: int) -> tuple[bytes, int, int]:
    """A page as JPEG for an outside OCR provider, with its width and height."""
    target = io.BytesIO()
    with limited(60):
        picture = _render(path, content_type, number, DPI)
        # A PNG of a noisy scan would pass the 10 MB that Google takes.
        picture.save(target, "JPEG", quality=90)
    return target.getvalue(), picture.width, picture.height


def _in_pixels(box: Sequence[float], size: tuple[int, int]) -> tuple[float, float, float, float]:
    left, top, right, bottom = box
    return left * size[0], top * size[1], right * size[0], bottom * size[1]


def _read_page(path: str, content_type: str, number: int, has_ocr: bool) -> dict[str, Any]:
    if content_type == "application/pdf":
        words, is_scan = _text_layer(path, number)
        least = LEAST_CHARACTERS_OF_SCAN if is_scan else LEAST_CHARACTERS
        if sum(len(word["text"]) for word in words) >= least:
            return {"number": number, "method": "text", "score": 1.0, "rotation": 0, "words": words}
    picture = _render(path, content_type, number, DPI)
    if not has_ocr and not _is_blank(picture):
        return {"number": number, "method": "none", "score": 0.0, "rotation": 0, "words": []}
    return {"number": number, "method": "ocr", **_recognize(picture)}


# The text layer


def _text_layer(path: str, number: int) -> tuple[list[dict[str, Any]], bool]:
    """The words of the text layer, and whether the page is mainly an image."""
    import pypdfium2  # pyright: ignore[reportMissingTypeStubs]

    raw: Any = pypdfium2.raw
    document: Any = pypdfium2.PdfDocument(path)
    try:
        page: Any = document[number - 1]
        text: Any = page.get_textpage()
        left, right, bottom, top = (ctypes.c_double() for _ in range(4))
        words: list[dict[str, Any]] = []
        letters: list[str] = []
        boxes: list[tuple[float, float, float, float]] = []

        def end_word() -> None:
            if letters and boxes:
                words.append({"text": "".join(letters), "box": _on_page(raw, page, boxes), "score": 1.0})
            letters.clear()
            boxes.clear()

        for index in range(text.count_chars()):
            code = raw.FPDFText_GetUnicode(text, index)
            letter = _letter(code)
            if not letter or letter.isspace():
                end_word()
                continue
            raw.FPDFText_GetCharBox(text, index, left, right, bottom, top)
            box = (left.value, bottom.value, right.value, top.value)
            if boxes and abs(box[1] - boxes[-1][1]) > 3 * max(1.0, boxes[-1][3] - boxes[-1][1]):
                end_word()
            letters.append(letter)
            boxes.append(box)
        end_word()
        return words, _covered_by_images(raw, page) >= _SCAN_COVER
    except pypdfium2.PdfiumError as error:
        raise Fail(f"page {number} cannot be read: {str(error)[:200]}", code="broken_pdf") from None
    finally:
        document.close()


def _covered_by_images(raw: Any, page: Any) -> float:
    """The part of a page that its images cover; a scan may consist of several."""
    left, bottom, right, top = page.get_bbox()
    covered = 0.0
    for item in page.get_objects(filter=(raw.FPDF_PAGEOBJ_IMAGE,)):
        box = item.get_bounds()
        width = min(box[2], right) - max(box[0], left)
        height = min(box[3], top) - max(box[1], bottom)
        covered += max(0.0, width) * max(0.0, height)
    return covered / max(1.0, (right - left) * (top - bottom))


def _letter(code: int) -> str:
    """A character of PDFium, which writes the hyphen at the end of a line as U+0002 or U+FFFE."""
    if code in (2, 0xFFFE):
        return "-"
    return chr(code) if 0x20 <= code < 0x110000 and not 0xD800 <= code < 0xE000 else ""


def _on_page(raw: Any, page: Any, boxes: list[tuple[float, float, float, float]]) -> list[float]:
    """The box around boxes in points, as parts of the page as it is shown (cropped and rotated)."""
    x, y = ctypes.c_int(), ctypes.c_int()
    corners: list[tuple[float, float]] = []
    left, bottom = min(box[0] for box in boxes), min(box[1] for box in boxes)
    right, top = max(box[2] for box in boxes), max(box[3] for box in boxes)
    for corner in ((left, bottom), (right, top)):
        raw.FPDF_PageToDevice(page, 0, 0, _GRID, _GRID, 0, corner[0], corner[1], x, y)
        corners.append((x.value / _GRID, y.value / _GRID))
    (x0, y0), (x1, y1) = corners
    return _rounded([min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1)])


# OCR


def _render(path: str, content_type: str, number: int, dpi: int) -> Any:
    from PIL import Image, ImageOps

    if content_type != "application/pdf":
        Image.MAX_IMAGE_PIXELS = None  # the scan checked the size
        with Image.open(path) as opened:
            if number > 1:
                opened.seek(number - 1)
            picture = ImageOps.exif_transpose(opened).convert("RGB")
    else:
        import pypdfium2  # pyright: ignore[reportMissingTypeStubs]

        document: Any = pypdfium2.PdfDocument(path)
        try:
            page: Any = document[number - 1]
            scale = min(dpi / 72, _LONGEST_SIDE / max(page.get_size()))
            picture = page.render(scale=scale).to_pil().convert("RGB")
        except pypdfium2.PdfiumError as error:
            raise Fail(f"page {number} cannot be rendered: {str(error)[:200]}", code="broken_pdf") from None
        finally:
            document.close()
    picture.thumbnail((_LONGEST_SIDE, _LONGEST_SIDE))
    return picture


@cache
def _engine() -> Any:
    try:
        rapidocr: Any = importlib.import_module("rapidocr")
    except ImportError:
        raise Fail(
            "the page has no text layer and rapidocr is not installed: pip install 'penstock[ocr]'",
            code="no_ocr",
        ) from None
    models = Path(rapidocr.__file__).parent / "models"
    if not any(models.glob("*.onnx")):
        raise Fail(f"{models} has no OCR models", code="no_ocr")
    return rapidocr.RapidOCR(
        params={
            "Global.log_level": "error",
            # It turns lines, not pages: the lines of a page that is upside down would be in the wrong order.
            "Global.use_cls": False,
            # One process per core reads faster than one with many threads.
            "EngineConfig.onnxruntime.intra_op_num_threads": 1,
            "EngineConfig.onnxruntime.inter_op_num_threads": 1,
        }
    )


def _recognize(picture: Any) -> dict[str, Any]:
    """Read an image; if the result is poor, also turned by 90, 180 and 270 degrees, and keep the best.

    A skewed page is read again straight: the boxes of its lines overlap, so that their order is lost.
    """
    if _is_blank(picture):
        return {"score": 1.0, "rotation": 0, "words": []}
    best, skew = _recognize_turned(picture, 0)
    if not best["words"] or _is_poor(best):
        for rotation in (90, 270, 180):
            found, angle = _recognize_turned(picture, rotation)
            if _weight(found) > 1.2 * _weight(best):
                best, skew = found, angle
    if LEAST_SKEW <= abs(skew) <= MOST_SKEW:
        straight, _ = _recognize_turned(picture, best["rotation"] + skew)
        if _weight(straight) > 0.95 * _weight(best):
            return straight
    return best


def _is_blank(picture: Any) -> bool:
    darkest, lightest = picture.convert("L").getextrema()
    return lightest - darkest < _LEAST_CONTRAST


def _is_poor(found: dict[str, Any]) -> bool:
    """Whether the page may be turned: low scores, or most boxes higher than wide."""
    upright = sum(1 for word in found["words"] if word["is_upright"] and len(word["text"]) > 2)
    return found["score"] < POOR_SCORE or upright > len(found["words"]) / 2


def _weight(found: dict[str, Any]) -> float:
    return sum(
        len(word["text"]) * word["score"] ** 2 * (0.2 if word["is_upright"] and len(word["text"]) > 2 else 1)
        for word in found["words"]
    )


def _turned(picture: Any, rotation: float) -> Any:
    """The picture turned counterclockwise, with white corners."""
    if not rotation:
        return picture
    return picture.rotate(rotation, expand=True, fillcolor="white", resample=_BICUBIC if rotation % 90 else 0)


def _skew_of(boxes: Any) -> float:
    """By how many degrees the lines fall from left to right: the median of the wider half of them."""
    sides = [(float(b[1][0] - b[0][0]), float(b[1][1] - b[0][1])) for b in boxes]
    wide = sorted((side for side in sides if side[0] > 0), reverse=True)
    angles = [math.degrees(math.atan2(down, right)) for right, down in wide[: (len(wide) + 1) // 2]]
    return round(statistics.median(angles), 2) if angles else 0.0


def _recognize_turned(picture: Any, rotation: float) -> tuple[dict[str, Any], float]:
    """What OCR reads on the turned page, and how skewed its lines are there."""
    import numpy

    turned = _turned(picture, rotation)
    result = _engine()(numpy.asarray(turned)[:, :, ::-1])
    words: list[dict[str, Any]] = []
    width, height = turned.size
    boxes: Any = result.boxes if result.boxes is not None else []
    for box, text, score in zip(boxes, result.txts or (), result.scores or (), strict=True):
        if not text.strip():
            continue
        xs, ys = [float(point[0]) for point in box], [float(point[1]) for point in box]
        part = [min(xs) / width, min(ys) / height, max(xs) / width, max(ys) / height]
        is_upright = max(ys) - min(ys) > 1.5 * (max(xs) - min(xs))
        words.append(
            {
                "text": text.strip(),
                "box": _rounded([min(1.0, max(0.0, side)) for side in part]),
                "score": round(float(score), 4),
                "is_upright": is_upright,
            }
        )
    score = statistics.fmean(word["score"] for word in words) if words else 0.0
    # The boxes are those of the turned page, as a person reads it.
    return {"score": round(score, 4), "rotation": rotation, "words": words}, _skew_of(boxes)


def _rounded(box: list[float]) -> list[float]:
    return [round(side, 5) for side in box]
