# ruff: noqa: E501
"""OCR accuracy by class of document, pages per second, and memory: `python -m bench.intake`.

`accuracy` makes a corpus (Typst, rendered at 200 dpi, then damaged) and compares what the pipeline reads with
what was written. `throughput` reads pages with 1 and 2 processes. `memory` reads a document of 200 pages as
the pipeline does and reports the peak of the process. All run without a database.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image, ImageFilter

from bench.measure import Figure
from penstock.apps.intake import layout, reading, scanning
from tests.apps import documents

PDF, PNG = "application/pdf", "image/png"
PAGES = 3
"""Pages of each class."""
LONG = 200
Change = Callable[[Image.Image, int], Image.Image]
# name, language, how the image is damaged
CLASSES: list[tuple[str, str, Change]] = [
    ("clean print, English", "english", lambda image, seed: image),
    ("clean print, German", "german", lambda image, seed: image),
    ("clean print, French", "french", lambda image, seed: image),
    ("noisy scan", "english", lambda image, seed: documents.noisy(image, seed)),
    ("noisy scan, German", "german", lambda image, seed: documents.noisy(image, seed)),
    ("skewed by 3°", "english", lambda image, seed: image.rotate(3, fillcolor="white", expand=True)),
    ("turned by 90°", "english", lambda image, seed: image.rotate(90, expand=True)),
    ("upside down", "english", lambda image, seed: image.rotate(180)),
    ("blurred", "english", lambda image, seed: image.filter(ImageFilter.GaussianBlur(2.5))),
]
# The same damage at fewer dots: where reading begins to fail.
COARSE: list[tuple[str, int, Change]] = [
    ("noisy scan, 100 dpi", 100, lambda image, seed: documents.noisy(image, seed)),
    ("noisy scan, 75 dpi", 75, lambda image, seed: documents.noisy(image, seed)),
    ("fax, 100 dpi", 100, lambda image, seed: documents.fax(image)),
]


@contextmanager
def stored(data: bytes) -> Iterator[str]:
    """A file with this content."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        path = Path(folder) / "document"
        path.write_bytes(data)
        yield str(path)


def read(data: bytes, kind: str, last: int = 1) -> dict[str, Any]:
    """Scan, read and arrange a document, as the pipeline does."""
    with stored(data) as path:
        scanning.scan(path, kind)
        return layout.arrange(reading.read(path, kind, 1, last))


def _score(data: bytes, kind: str, text: str) -> float:
    return documents.accuracy(layout.text_of(read(data, kind)), text)


def accuracy(pages: int = PAGES) -> list[Figure]:
    """The share of characters that were read right, by class; order and cells for columns and tables."""
    found: list[Figure] = []

    def add(name: str, values: list[float], texts: list[str]) -> None:
        characters = sum(len("".join(text.split())) for text in texts)
        found.append(Figure("ocr_accuracy", name, statistics.fmean(values), "of characters"))
        found.append(Figure("ocr_characters", name, characters, "characters"))
        print(
            f"  {name:<30} {statistics.fmean(values):.4f}  worst page {min(values):.4f}  {characters:,}",
            flush=True,
        )

    cases = [(name, language, 200, change) for name, language, change in CLASSES]
    cases += [(name, "english", dpi, change) for name, dpi, change in COARSE]
    for name, language, dpi, change in cases:
        texts = [documents.letter(language, seed) for seed in range(pages)]
        images = [
            change(documents.picture(documents.pdf(text), dpi=dpi), seed) for seed, text in enumerate(texts)
        ]
        values = [_score(documents.png(image), PNG, text) for image, text in zip(images, texts, strict=True)]
        add(name, values, texts)
    texts = [documents.letter("english", seed, 5) for seed in range(pages)]
    add("8 pt", [_score(_image(documents.pdf(text, size="8pt")), PNG, text) for text in texts], texts)
    values = [_score(_image(documents.uneven(text, 1)), PNG, text) for text in texts]
    add("italic, letters turned and moved", values, texts)
    text_of_pages = [documents.letter("english", seed, 5) for seed in range(LONG)]
    long = read(documents.pdf("\n#pagebreak()\n".join(text_of_pages)), PDF, LONG)
    values = [
        documents.accuracy(layout.text_of({"pages": [page]}), text)
        for page, text in zip(long["pages"], text_of_pages, strict=True)
    ]
    add(f"text layer, {LONG} pages", values, text_of_pages)
    by_name = {figure.system: figure.value for figure in found if figure.name == "ocr_accuracy"}
    found.append(Figure("ocr_clean", "character accuracy", by_name["clean print, English"], ""))
    found.append(Figure("ocr_noisy", "character accuracy", by_name["noisy scan"], ""))
    return [*found, *_structure()]


def _image(document: bytes) -> bytes:
    return documents.png(documents.picture(document))


def _structure() -> list[Figure]:
    """Two columns in reading order and the cells of a table, each from the text layer and from a scan."""
    found: list[Figure] = []
    for source, columns, table in (
        ("text layer", (documents.two_columns(), PDF), (documents.table(), PDF)),
        ("scan", (_image(documents.two_columns()), PNG), (_image(documents.table()), PNG)),
    ):
        text = "".join(layout.text_of(read(*columns)).split()).replace("-", "")
        places = [
            text.find(f"{side}columnsentencenumber{n}") for side in ("Left", "Right") for n in range(1, 9)
        ]
        right = sum(0 <= one < other for one, other in itertools.pairwise(places))
        found.append(Figure("reading_order", source, right / (len(places) - 1), "of neighbors"))
        cells = [
            cell["text"]
            for page in read(*table)["pages"]
            for block in page["blocks"]
            if block["kind"] == "table"
            for line in block["lines"]
            for cell in line["cells"]
        ]
        wanted = [cell for row in documents.TABLE for cell in row]
        same = sum(one == other for one, other in zip(cells, wanted, strict=False))
        found.append(Figure("table_cells", source, same / len(wanted), "of cells"))
    return found


# Throughput and memory


def throughput(pages: int = 8, text_pages: int = 400) -> list[Figure]:
    """Pages per second with 1 and 2 processes, with OCR and from a text layer."""
    found: list[Figure] = []
    text = documents.letter("english", 0, 5)
    scan = documents.scanned(documents.pdf("\n#pagebreak()\n".join([text] * pages)))
    printed = documents.pdf("\n#pagebreak()\n".join([text] * text_pages))
    for name, data, count, step in (("OCR", scan, pages, 1), ("text layer", printed, text_pages, 8)):
        rates: list[float] = []
        for processes in (1, 2):
            seconds, cpu = _read_in(processes, data, count, step)
            rates.append(count / seconds)
            words = "1 process" if processes == 1 else "2 processes"
            found.append(Figure("pages_per_second", f"{name}, {words}", count / seconds, "pages/s"))
            found.append(Figure("pages_per_core", f"{name}, {words}", count / cpu, "pages/s of CPU"))
        found.append(Figure("pages_growth", f"{name}, 2 processes to 1", rates[1] / rates[0], "×"))
    return found


def _read_in(processes: int, data: bytes, pages: int, step: int) -> tuple[float, float]:
    """Seconds of time and of CPU to read the pages with this many processes, which have loaded the models."""
    context = multiprocessing.get_context("spawn")
    with stored(data) as path, ProcessPoolExecutor(processes, mp_context=context) as pool:
        list(pool.map(_warm_up, [path] * processes * 2))
        began = time.monotonic()
        parts = [(path, first, min(pages, first + step - 1)) for first in range(1, pages + 1, step)]
        cpu = sum(pool.map(_read_part, parts))
        return time.monotonic() - began, cpu


def _warm_up(path: str) -> None:
    reading.read(path, PDF, 1, 1)
    time.sleep(0.2)  # so that each process gets one


def _read_part(part: tuple[str, int, int]) -> float:
    path, first, last = part
    before = time.process_time()
    layout.arrange(reading.read(path, PDF, first, last))
    return time.process_time() - before


def memory(pages: int = LONG, ocr_pages: int = 16) -> list[Figure]:
    """The peak of a process that takes a document through scan, reading and layout, 8 pages at a time."""
    text = documents.letter("english", 0, 5)
    printed = documents.pdf("\n#pagebreak()\n".join(f"{n} {text}" for n in range(pages)))
    scan = documents.scanned(documents.pdf("\n#pagebreak()\n".join([text] * pages)))
    found: list[Figure] = []
    for name, data, count in (
        ("1 page, text layer", documents.pdf(text), 1),
        (f"{pages} pages, text layer", printed, pages),
        ("1 page, OCR", documents.scanned(documents.pdf(text)), 1),
        (f"{pages} scanned pages, {ocr_pages} of them read", scan, ocr_pages),
    ):
        context = multiprocessing.get_context("spawn")
        with stored(data) as path, ProcessPoolExecutor(1, mp_context=context) as pool:
            peak = pool.submit(_peak, path, count).result()
        found.append(Figure("peak_memory", name, peak, "MB"))
    return found


def _peak(path: str, pages: int) -> float:
    """Megabytes."""
    scanning.scan(path, PDF)
    parts = [
        page
        for first in range(1, pages + 1, 8)
        for page in reading.read(path, PDF, first, min(pages, first + 7))
    ]
    layout.arrange(parts)
    # Not ru_maxrss: a new process begins with the peak of the one that started it.
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) / 1024


# The report


def page(figures: list[Figure]) -> list[str]:
    """The section of docs/benchmarks.md, or nothing if that was not measured."""
    classes = [figure for figure in figures if figure.name == "ocr_accuracy"]
    if not classes:
        return []
    sizes = {figure.system: figure.value for figure in figures if figure.name == "ocr_characters"}
    lines = [
        "## Documents",
        "",
        "Pages that the benchmark makes with Typst at 200 dpi, and damages: a noisy scan is grey, blurred, turned",
        "by 0.7° and has dust. Half of the text are random names and codes, which no language model can guess. Accuracy is",
        "the share of characters by edit distance. The damage is synthetic, so 1.0 says that OCR is not the weak point on",
        "print like this, and nothing about real scans or handwriting: neither was measured.",
        "",
        "| class | character accuracy | characters |",
        "|---|---:|---:|",
        *(f"| {f.system} | {f.value:.4f} | {sizes[f.system]:,.0f} |" for f in classes),
        "",
        "| structure | source | right |",
        "|---|---|---:|",
    ]
    for name, what in (("reading_order", "two columns in order"), ("table_cells", "cells of a table")):
        lines += [f"| {what} | {f.system} | {f.value:.0%} |" for f in figures if f.name == name]
    lines += ["", "| pages | pages/s | pages/s of one core's CPU |", "|---|---:|---:|"]
    cpu = {figure.system: figure.value for figure in figures if figure.name == "pages_per_core"}
    lines += [
        f"| {f.system} | {f.value:,.2f} | {cpu[f.system]:,.2f} |"
        for f in figures
        if f.name == "pages_per_second"
    ]
    lines += [f"| {f.system} | {f.value:.2f} × | |" for f in figures if f.name == "pages_growth"]
    lines += ["", "| document | peak memory of the process |", "|---|---:|"]
    lines += [f"| {f.system} | {f.value:,.0f} MB |" for f in figures if f.name == "peak_memory"]
    return [*lines, ""]


PARTS: dict[str, Callable[[], list[Figure]]] = {
    "accuracy": accuracy,
    "throughput": throughput,
    "memory": memory,
}


def measure() -> list[Figure]:
    """All parts."""
    return [figure for part in PARTS.values() for figure in part()]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.intake", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="default: all")
    for part in parser.parse_args().parts or PARTS:
        began = time.monotonic()
        print(f"## {part} ({os.cpu_count()} cores)", flush=True)
        for figure in PARTS[part]():
            print(f"  {figure.name:<18} {figure.system:<40} {figure.value:>10,.3f} {figure.unit}", flush=True)
        print(f"  {time.monotonic() - began:.0f} s", flush=True)
