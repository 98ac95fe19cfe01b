"""Documents for the tests of the intake: printed, scanned, broken and hostile ones."""

from __future__ import annotations

import io
import random
import zlib
from functools import cache
from typing import Any

import pypdfium2
import typst
from PIL import Image, ImageFilter

ENGLISH = (
    "The patient was seen on 12 March 2025 for a follow-up of her high blood pressure. She takes lisinopril "
    "10 mg once a day and reports no dizziness. Blood pressure today was 128/82 mmHg, pulse 71 per minute. "
    "The kidney function is stable with a creatinine of 0.9 mg/dL. Continue the present treatment and return "
    "in six months, or earlier if headaches or swelling of the legs appear."
)
GERMAN = (
    "Die Patientin wurde am 12. März 2025 zur Kontrolle ihres Bluthochdrucks untersucht. Sie nimmt täglich "
    "10 mg Lisinopril ein und klagt nicht über Schwindel. Der Blutdruck betrug heute 128/82 mmHg."
)
FRENCH = (
    "La patiente a été vue le 12 mars 2025 pour le suivi de son hypertension artérielle. Elle prend dix "
    "milligrammes de lisinopril par jour et ne signale aucun vertige. Le pouls est de 71 par minute."
)
LEFT = [f"Left column sentence number {n} tells about the heart and its rhythm." for n in range(1, 9)]
RIGHT = [f"Right column sentence number {n} tells about the lungs and breath." for n in range(1, 9)]
TABLE = [
    ("Sodium", "140", "mmol/L"),
    ("Potassium", "4.2", "mmol/L"),
    ("Glucose", "5.4", "mmol/L"),
    ("Urea", "5.1", "mmol/L"),
]


@cache
def pdf(markup: str, *, size: str = "11pt") -> bytes:
    """A PDF of Typst markup."""
    source = f'#set page(paper: "a4")\n#set text(size: {size})\n#set par(justify: true)\n{markup}'
    made = typst.compile(source.encode(), format="pdf")
    assert isinstance(made, bytes)
    return made


def two_columns() -> bytes:
    body = " ".join(LEFT) + "\n#colbreak()\n" + " ".join(RIGHT)
    return pdf(
        f"#align(center)[#text(size: 18pt)[A report in two columns]]\n#columns(2, gutter: 24pt)[{body}]"
    )


def table() -> bytes:
    cells = ", ".join(f"[{cell}]" for row in TABLE for cell in row)
    return pdf(f"Results of the laboratory:\n\n#table(columns: (1fr, 1fr, 1fr), {cells})")


def pages(count: int) -> bytes:
    return pdf("\n#pagebreak()\n".join(f"Page {n} of the record. {ENGLISH}" for n in range(1, count + 1)))


def picture(document: bytes, *, dpi: int = 200) -> Image.Image:
    """The first page as an image."""
    opened: Any = pypdfium2.PdfDocument(document)
    try:
        return opened[0].render(scale=dpi / 72).to_pil().convert("RGB")
    finally:
        opened.close()


def png(image: Image.Image) -> bytes:
    target = io.BytesIO()
    image.save(target, "PNG")
    return target.getvalue()


def noisy(image: Image.Image, seed: int = 1) -> Image.Image:
    """As a cheap scanner makes it: grey, slightly turned, blurred, with dust."""
    chance = random.Random(seed)
    made = image.convert("L").rotate(0.7, fillcolor=255, resample=Image.Resampling.BICUBIC)
    made = made.filter(ImageFilter.GaussianBlur(0.8))
    noise = Image.effect_noise(made.size, 40)
    made = Image.blend(made, noise, 0.18)
    pixels: Any = made.load()
    for _ in range(made.width * made.height // 700):
        pixels[chance.randrange(made.width), chance.randrange(made.height)] = chance.choice((0, 255))
    return made.convert("RGB")


def encrypted() -> bytes:
    """A PDF whose trailer asks for a password."""
    return raw_pdf(trailer=b"/Encrypt << /Filter /Standard /V 1 /R 2 /P -4 /O <" + b"41" * 32 + b"> /U <" + b"42" * 32 + b"> >> /ID [<00> <00>]")  # fmt: skip


def bomb() -> bytes:
    """A PDF with a small stream that unpacks to 300 MB."""
    packer = zlib.compressobj(9)
    data = b"".join([*(packer.compress(bytes(1 << 20)) for _ in range(300)), packer.flush()])
    return raw_pdf(stream=data)


def active() -> bytes:
    """A PDF that asks its reader to run a script, written with an escape."""
    return raw_pdf(catalog=b"/OpenAction << /S /J#61vaScript /JS (app.alert(1)) >>")


def raw_pdf(*, catalog: bytes = b"", trailer: bytes = b"", stream: bytes = b"") -> bytes:
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R " + catalog + b" >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 300 300] /Contents 4 0 R >>",
        b"<< /Length %d /Filter /FlateDecode >>\nstream\n" % len(stream) + stream + b"\nendstream"
        if stream
        else b"<< /Length 0 >>\nstream\n\nendstream",
    ]
    made, offsets = b"%PDF-1.7\n", list[int]()
    for number, content in enumerate(objects, 1):
        offsets.append(len(made))
        made += b"%d 0 obj\n" % number + content + b"\nendobj\n"
    start = len(made)
    made += b"xref\n0 5\n0000000000 65535 f \n" + b"".join(b"%010d 00000 n \n" % at for at in offsets)
    return made + b"trailer << /Size 5 /Root 1 0 R " + trailer + b" >>\nstartxref\n%d\n%%%%EOF\n" % start


def huge_png() -> bytes:
    """A PNG whose header announces 40,000 × 40,000 pixels."""
    header = b"IHDR" + (40_000).to_bytes(4, "big") * 2 + b"\x08\x02\x00\x00\x00"
    chunk = (13).to_bytes(4, "big") + header + zlib.crc32(header).to_bytes(4, "big")
    body = zlib.compress(bytes(1000))
    data = b"IDAT" + body
    return (
        b"\x89PNG\r\n\x1a\n" + chunk
        + len(body).to_bytes(4, "big") + data + zlib.crc32(data).to_bytes(4, "big")
        + b"\0\0\0\0IEND\xaeB`\x82"
    )  # fmt: skip


def accuracy(found: str, wanted: str) -> float:
    """The share of characters that are right, by edit distance, ignoring white space."""
    a, b = "".join(found.split()), "".join(wanted.split())
    row = list(range(len(b) + 1))
    for i, left in enumerate(a, 1):
        above, row[0] = row[0], i
        for j, right in enumerate(b, 1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (left != right))
    return 1 - row[-1] / max(1, len(b))
