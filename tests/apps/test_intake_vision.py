"""Scans that an outside OCR provider reads: Google Vision, simulated on its wire."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy
import pytest
from PIL import Image, ImageDraw, ImageFilter

from penstock import simulator, testing
from penstock.apps.intake import app as module
from penstock.apps.intake import places, reading
from penstock.apps.intake.app import app
from penstock.apps.intake.settings import settings
from penstock.providers import Word
from tests.api.conftest import api_settings
from tests.api.rest.conftest import Person, Site
from tests.apps import documents
from tests.apps.test_intake import ask, site, status, upload, used
from tests.apps.test_intake_surface import rows

pytestmark = pytest.mark.own_sql(app)

__all__ = ["api_settings", "site"]

VISION = "google/vision-api"
COLORS = [(255, 0, 0), (0, 160, 0), (0, 0, 255), (200, 0, 200)]


# Places


def dots(image: Image.Image) -> list[tuple[float, float]]:
    """Where the dots of the four colors are, as parts of the image."""
    pixels = numpy.asarray(image.convert("RGB")).astype(int)
    found: list[tuple[float, float]] = []
    for color in COLORS:
        ys, xs = numpy.nonzero(numpy.abs(pixels - color).sum(axis=2) < 60)
        found.append((float(xs.mean()) / image.width, float(ys.mean()) / image.height))
    return found


@pytest.mark.parametrize("angle", [0, 90, 180, 270, 3, -4, 93])
def test_words_of_a_turned_page_stand_where_a_person_sees_them(angle: int) -> None:
    """R3.6/outside-ocr: the boxes of Google are those of the page as it was sent, and reading needs it upright."""
    page = Image.new("RGB", (600, 800), "white")
    draw = ImageDraw.Draw(page)
    for color, (x, y) in zip(COLORS, [(100, 200), (400, 200), (400, 230), (100, 230)], strict=True):
        draw.rectangle((x - 4, y - 4, x + 4, y + 4), fill=color)
    scan = page.rotate(-angle, expand=True, fillcolor="white")
    word = Word(" potassium", tuple(dots(scan)), 0.9)
    found = places.page_of(7, [word, Word(" ", word.corners, 0.1)], *scan.size)
    assert (found["number"], found["method"], found["score"], len(found["words"])) == (7, "vision", 0.9, 1)
    straight = reading._turned(scan, found["rotation"])
    corners = dots(straight)
    assert corners[0][0] < corners[1][0] and corners[0][1] < corners[3][1], "upright"
    [placed] = found["words"]
    xs, ys = zip(*corners, strict=True)
    assert placed["text"] == "potassium"
    assert placed["box"] == pytest.approx([min(xs), min(ys), max(xs), max(ys)], abs=0.006)


def test_page_of_which_next_to_nothing_was_read_is_poor() -> None:
    """R3.6/pipeline: OCR is sure of the one letter that it sees in a blurred page."""
    word = {"text": "1", "box": [0, 0, 1, 1], "score": 0.96}
    page = {"number": 1, "method": "ocr", "score": 0.96, "words": [word]}
    assert reading.is_poor(page) and reading.is_poor({**page, "score": 0.0, "words": []})
    assert not reading.is_poor({**page, "words": [{**word, "text": "Potassium 4.2 mmol/L"}]})
    assert not reading.is_poor({**page, "score": 1.0, "words": []}), "a blank page"


def test_page_without_words_is_empty() -> None:
    assert places.page_of(1, [], 10, 10)["words"] == [] and places.page_of(1, [], 10, 10)["score"] == 0


# The pipeline


def blurred(text: str = "Potassium 4.2 mmol/L") -> Image.Image:
    image = documents.picture(documents.pdf(text, size="9pt"))
    return image.filter(ImageFilter.GaussianBlur(3.2))


def three_pages(site: Site, person: Person) -> dict[str, Any]:
    """Uploads a PDF of a good scan, one that OCR cannot read, and an empty page."""
    good = documents.picture(documents.pdf(documents.ENGLISH))
    pages = [good, blurred(), Image.new("RGB", good.size, "white")]
    return upload(site, person, documents.images_as_pdf(pages), name="scan.pdf")


async def process(
    site: Site, drain: testing.Drain, monkeypatch: pytest.MonkeyPatch, person: Person, **settings: str
) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """Uploads and processes the three pages; returns the file, its layout and what Google has counted."""
    file = three_pages(site, person)
    async with app, simulator.serve(limits={"google": {"rpm": 1800}}) as running:
        for name, value in {
            "INTAKE_URL": running.openai_url,
            "INTAKE_OCR_URL": running.url,
            **settings,
        }.items():
            monkeypatch.setenv(name, value)
        await drain.arun(app, concurrency=2)
        accounts = [each for each in running.stats()["accounts"] if each["provider"] == "google"]
    summaries = rows(site, f"shell_file_results?shell_file_id=eq.{file['id']}&pass=eq.ocr", person.token)
    return status(site, person, file["id"]), summaries[0]["summary"] if summaries else {}, accounts


@pytest.mark.slow
async def test_pages_that_ocr_reads_poorly_go_to_google(
    site: Site, drain: testing.Drain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R3.6/outside-ocr: one page of three, counted and priced once; the tenant's pages are not counted again."""
    ann = site.join("ann")
    site.db.execute("select penstock.set_price(%s, 'requests', 0.0015)", [VISION])
    monkeypatch.setenv("GOOGLE_API_KEY", "AIza-secret")
    file, ocr, [account] = await process(site, drain, monkeypatch, ann, INTAKE_OCR=VISION)
    assert (file["status"], file["pages"]) == ("completed", 3), file
    assert ocr["methods"] == {"ocr": 2, "vision": 1} and ocr["poor_pages"] == []
    assert account["requests"] == 1 and account["key"] == "…none", "no key leaves for this machine"
    assert used(site, ann.tenant)["pages"] == (3, 0)
    [cost] = site.db.execute(
        "select sum(amount) as sum from penstock.cost_entries where provider = %s", [VISION]
    )
    assert cost["sum"] == Decimal("0.0015")


async def test_all_scans_go_to_google_if_the_setting_says_so(
    site: Site, drain: testing.Drain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R3.6/outside-ocr: a blank page costs nothing, and OCR does not run here."""

    def fail(picture: Any) -> Any:
        raise AssertionError("read here")

    monkeypatch.setattr(reading, "_recognize_turned", fail)
    ann = site.join("ann")
    settings = {"INTAKE_OCR": VISION, "INTAKE_OCR_PAGES": "all"}
    file, ocr, [account] = await process(site, drain, monkeypatch, ann, **settings)
    assert file["status"] == "completed" and ocr["methods"] == {"ocr": 1, "vision": 2}, (file, ocr)
    assert account["requests"] == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [{"INTAKE_REDACT": "1"}, {"consent": "required", "INTAKE_OCR_PAGES": "all"}]
)
async def test_no_page_leaves_if_it_may_not(
    site: Site, drain: testing.Drain, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]
) -> None:
    """R3.10/consent: nor with redaction, which cannot black out a picture."""
    if "consent" in settings:
        site.db.execute("select penstock.set_setting('intake.consent_required', 'true')")
    file, ocr, accounts = await process(
        site, drain, monkeypatch, site.join("ann"), INTAKE_OCR=VISION, **settings
    )
    assert accounts == []
    if "consent" in settings:
        assert (file["status"], file["processing_error"]["code"]) == ("failed", "no_consent")
    else:
        assert file["status"] == "completed" and ocr["methods"] == {"ocr": 3} and ocr["poor_pages"] == [2]


async def test_page_is_asked_for_once_although_the_quota_ends_between_pages(
    site: Site, drain: testing.Drain, monkeypatch: pytest.MonkeyPatch, clock: testing.Clock
) -> None:
    """R3.6/outside-ocr, R3.4/slows: a 429 of Google slows the lane; the page before it has been paid for and is kept."""
    ann, now = site.join("ann"), [1000.0]
    data = documents.images_as_pdf([blurred("Sodium 140"), blurred("Urea 5.1")])
    file = upload(site, ann, data, name="scan.pdf")
    async with app, simulator.serve(limits={"google": {"rpm": 1}}, clock=lambda: now[0]) as running:
        monkeypatch.setenv("INTAKE_URL", running.openai_url)
        monkeypatch.setenv("INTAKE_OCR_URL", running.url)
        monkeypatch.setenv("INTAKE_OCR", VISION)
        monkeypatch.setenv("INTAKE_OCR_PAGES", "all")
        for _ in range(3):
            await drain.arun(app, concurrency=2)
            clock.advance(minutes=5)
            now[0] += 60
        [account] = [each for each in running.stats()["accounts"] if each["provider"] == "google"]
    found = ask(site, ann, action="status", shell_file_id=file["id"]).json()
    assert found["status"] == "completed", found
    assert account["requests"] == 2 and sum(account["violations"].values()) >= 1, account


async def test_pages_left_for_google_are_not_forgotten_by_a_worker_without_the_setting(
    site: Site, drain: testing.Drain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R3.6/outside-ocr: a worker that leaves scans to others, and one that does not know to whom."""
    chosen = settings()
    # The scan asks first, then the task that reads.
    answers = iter([chosen, chosen._replace(reads_all_scans_outside=True)])
    monkeypatch.setattr(module, "settings", lambda: next(answers, chosen))
    file, _, accounts = await process(site, drain, monkeypatch, site.join("ann"))
    assert (file["status"], file["processing_error"]["code"]) == ("failed", "no_ocr")
    assert accounts == []
