"""Documents for the tests of the intake: printed, scanned, broken and hostile ones."""

from __future__ import annotations

import ctypes
import io
import random
import shutil
import subprocess
import zipfile
import zlib
from functools import cache
from pathlib import Path
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


WORD_TEXT = " ".join(
    [ENGLISH, GERMAN, FRENCH, *(" | ".join(row) for row in TABLE), "A report in two columns", *LEFT, *RIGHT]
)


def word_document() -> bytes:
    """A DOCX: three languages, a table, and two columns."""
    namespace = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
    edges = "".join(
        f'<w:{edge} w:val="single" w:sz="4"/>'
        for edge in ["top", "left", "bottom", "right", "insideH", "insideV"]
    )

    def paragraph(text: str, properties: str = "") -> str:
        return f"<w:p>{properties}<w:r><w:t>{text}</w:t></w:r></w:p>"

    def section(columns: int) -> str:
        return (
            '<w:sectPr><w:type w:val="continuous"/><w:pgSz w:w="11906" w:h="16838"/>'
            '<w:pgMar w:top="1134" w:right="1134" w:bottom="1134" w:left="1134"/>'
            f'<w:cols w:num="{columns}" w:space="567"/></w:sectPr>'
        )

    rows = "".join(
        f"<w:tr>{''.join(f'<w:tc>{paragraph(cell)}</w:tc>' for cell in row)}</w:tr>" for row in TABLE
    )
    body = (
        "".join(paragraph(text) for text in (ENGLISH, GERMAN, FRENCH))
        + f'<w:tbl><w:tblPr><w:tblW w:w="5000" w:type="pct"/><w:tblBorders>{edges}</w:tblBorders></w:tblPr>{rows}</w:tbl>'
        + paragraph("A report in two columns", f"<w:pPr>{section(1)}</w:pPr>")
        + "".join(paragraph(text) for text in (*LEFT, *RIGHT))
        + section(2)
    )
    types = "application/vnd.openxmlformats-"
    relation = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as made:
        made.writestr(
            "[Content_Types].xml",
            '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
            f'<Default Extension="rels" ContentType="{types}package.relationships+xml"/>'
            '<Override PartName="/word/document.xml" '
            f'ContentType="{types}officedocument.wordprocessingml.document.main+xml"/></Types>',
        )
        made.writestr(
            "_rels/.rels",
            '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">'
            f'<Relationship Id="r1" Type="{relation}" Target="word/document.xml"/></Relationships>',
        )
        made.writestr(
            "word/document.xml", f'<w:document xmlns:w="{namespace}"><w:body>{body}</w:body></w:document>'
        )
    return target.getvalue()


def printed(document: bytes, folder: Path) -> bytes:
    """A DOCX as a PDF of LibreOffice."""
    source, program = folder / "letter.docx", shutil.which("soffice")
    assert program, "LibreOffice is not installed"
    source.write_bytes(document)
    subprocess.run(
        [program, f"-env:UserInstallation=file://{folder}/profile", "--headless", "--norestore",
         "--convert-to", "pdf", "--outdir", folder, source],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    return source.with_suffix(".pdf").read_bytes()


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


def wide() -> bytes:
    """A PDF with a page that is wider than the format allows."""
    return raw_pdf().replace(b"[0 0 300 300]", b"[0 0 90000 300]")


def huge_picture() -> bytes:
    """A PDF with an image that announces 60,000 × 60,000 pixels and has hardly any data."""
    draw = b"q 300 0 0 300 0 0 cm /Im Do Q"
    image = zlib.compress(bytes(1000))
    made = raw_pdf(stream=zlib.compress(draw)).partition(b"xref\n0 5")[0]
    made = made.replace(b"/Contents 4 0 R", b"/Contents 4 0 R /Resources << /XObject << /Im 5 0 R >> >>")
    return made + (
        b"5 0 obj\n<< /Type /XObject /Subtype /Image /Width 60000 /Height 60000 /ColorSpace /DeviceRGB"
        b" /BitsPerComponent 8 /Filter /FlateDecode /Length %d >>\nstream\n%s\nendstream\nendobj\n"
        b"trailer << /Size 6 /Root 1 0 R >>\n%%%%EOF\n" % (len(image), image)
    )


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


# A corpus of any size: sentences with random values, so that no two pages are the same.

_SENTENCES = {
    "english": [
        "The patient was seen on {day} March {year} because of {a} and mild fever.",
        "Blood pressure today was {n}/{m} mmHg, pulse {k} per minute, weight {k}.{d} kg.",
        "She takes {drug} {n} mg once a day and reports no side effects.",
        "The creatinine was 0.{d} mg/dL and the potassium {d}.{e} mmol/L.",
        "Please repeat the examination in {d} weeks and send us the results.",
    ],
    "german": [
        "Die Patientin wurde am {day}. März {year} wegen {a} und Übelkeit untersucht.",
        "Der Blutdruck betrug {n}/{m} mmHg, der Puls {k} pro Minute.",
        "Sie nimmt täglich {n} mg {drug} ein und klagt nicht über Schwäche.",
        "Das Kreatinin lag bei 0,{d} mg/dl, die Größe beträgt {n} cm.",
        "Wir bitten um Rückmeldung in {d} Wochen.",
    ],
    "french": [
        "La patiente a été vue le {day} mars {year} pour {a} et une légère fièvre.",
        "La tension était de {n}/{m} mmHg et le pouls de {k} par minute.",
        "Elle prend {n} mg de {drug} par jour sans effet gênant.",
        "La créatinine était à 0,{d} mg/dl, le potassium à {d},{e} mmol/l.",
        "Merci de répéter le contrôle dans {d} semaines.",
    ],
}
_COMPLAINTS = {
    "english": ["headache", "chest pain", "a persistent cough"],
    "german": ["Kopfschmerzen", "Rückenschmerzen", "Husten"],
    "french": ["des maux de tête", "une toux", "une douleur à la poitrine"],
}


_SYLLABLES = [
    "ba",
    "ce",
    "di",
    "fo",
    "gu",
    "ha",
    "jo",
    "ke",
    "li",
    "mo",
    "nu",
    "pra",
    "que",
    "ri",
    "so",
    "tu",
    "vex",
    "wy",
    "zan",
    "schi",
    "thel",
]


def _unknown_words(chance: random.Random) -> str:
    """Names and codes that no language model can guess."""
    names = ["".join(chance.choices(_SYLLABLES, k=chance.randint(2, 4))).capitalize() for _ in range(3)]
    codes = ["".join(chance.choices("ABCDEFGHKLMNPRSTUVWXYZ23456789", k=6)) for _ in range(2)]
    return f"{' '.join(names)}, {codes[0]}-{chance.randint(10, 99)}/{codes[1]}."


def letter(language: str = "english", seed: int = 0, sentences: int = 10) -> str:
    """A text with random values; half of it are names and codes, so that no two pages are alike."""
    chance = random.Random(f"{language}:{seed}")
    return " ".join(
        _SENTENCES[language][number % 5].format(
            day=chance.randint(1, 28), year=chance.randint(1990, 2025), n=chance.randint(100, 190),
            m=chance.randint(60, 99), k=chance.randint(50, 99), d=chance.randint(2, 9), e=chance.randint(1, 9),
            drug=chance.choice(["lisinopril", "metformin", "ibuprofen"]), a=chance.choice(_COMPLAINTS[language]),
        ) + " " + _unknown_words(chance)
        for number in range(sentences)
    )  # fmt: skip


def uneven(text: str, seed: int = 0) -> bytes:
    """Italic letters that are turned and moved one by one. Not handwriting: each letter has its printed form."""
    chance = random.Random(seed)
    words = [
        "".join(
            f"#box(move(dy: {chance.uniform(-0.9, 0.9):.2f}pt, "
            f'rotate({chance.uniform(-7, 7):.1f}deg, text(size: {chance.uniform(13, 15.5):.1f}pt, "{letter}"))))'
            for letter in word
        )
        for word in text.split()
    ]
    return pdf('#set text(style: "italic")\n#set par(justify: false, leading: 1.1em)\n' + " ".join(words))


def fax(image: Image.Image) -> Image.Image:
    """Black and white, without greys."""
    return image.convert("L").point([255 * (value > 140) for value in range(256)]).convert("RGB")


def stamped(document: bytes, text: str) -> bytes:
    """The same pages as images, with a line of real text at their top, as a fax server adds it."""
    opened: Any = pypdfium2.PdfDocument(scanned(document))
    raw: Any = pypdfium2.raw
    characters = (ctypes.c_ushort * (len(text) + 1))(*map(ord, text), 0)
    try:
        for page in opened:
            line = raw.FPDFPageObj_NewTextObj(opened.raw, b"Helvetica", 8)
            raw.FPDFText_SetText(line, characters)
            raw.FPDFPageObj_Transform(line, 1, 0, 0, 1, 40, page.get_height() - 20)
            raw.FPDFPage_InsertObject(page.raw, line)
            page.gen_content()
        target = io.BytesIO()
        opened.save(target)
        return target.getvalue()
    finally:
        opened.close()


def scanned(document: bytes, *, dpi: int = 200) -> bytes:
    """The same pages as images without a text layer."""
    opened: Any = pypdfium2.PdfDocument(document)
    try:
        images = [page.render(scale=dpi / 72).to_pil().convert("L") for page in opened]
    finally:
        opened.close()
    return images_as_pdf(images, dpi)


def images_as_pdf(images: list[Image.Image], dpi: int = 200) -> bytes:
    """A PDF whose pages are these images."""
    target = io.BytesIO()
    images[0].save(target, "PDF", save_all=True, append_images=images[1:], resolution=dpi)
    return target.getvalue()
