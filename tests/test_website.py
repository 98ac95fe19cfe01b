"""The documentation site: all pages are in its navigation, all links hold, and each page has a Markdown twin."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import website

ROOT = Path(__file__).parents[1]


def test_navigation_names_every_page_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(website, "PAGES", tmp_path / "pages")
    website.gather(website.PAGES)
    website.check_navigation(website.read_config())


def test_page_missing_from_the_navigation_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(website, "PAGES", tmp_path)
    (tmp_path / "new.md").write_text("# New\n")
    with pytest.raises(website.Broken, match=r"does not name these pages: new\.md"):
        website.check_navigation({"nav": []})


def test_links_of_gathered_pages_lead_to_gathered_pages(tmp_path: Path) -> None:
    website.gather(tmp_path)
    assert "](tutorial.md)" in (tmp_path / "index.md").read_text()
    assert "](contributing.md)" in (tmp_path / "sdk.md").read_text()
    assert "](../glossary.md)" in (tmp_path / "guides/debug.md").read_text()


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="b.html#x">x</a> <a href="c.html">c</a> <a href="https://d.example">d</a>'
    )
    (tmp_path / "b.html").write_text('<p id="y">')
    assert list(website.broken_links(tmp_path)) == ["a.html: b.html#x", "a.html: c.html"]


def test_summary_is_the_first_sentence_without_links() -> None:
    assert website.summary("# T\n\n![a](b.svg)\n\nUse [this](x.md). Not that.\n") == "Use this."


@pytest.mark.slow
def test_the_site_is_built() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/website.py"], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    built = ROOT / "build/site"
    names = [file for _, _, file in website.titled(website.read_config()["nav"])]
    for name in names:
        assert (built / name).read_text().startswith(("#", "<!--")), name
        assert (built / name.replace(".md", ".html")).exists()
        page = (built / name.replace(".md", ".html")).read_text()
        assert f'type="text/markdown" href="{Path(name).name}"' in page and "This page as Markdown" in page, (
            name
        )
        assert f"]({name}): " in (built / "llms.txt").read_text()
    # It works offline: nothing is loaded from another host.
    loaded = [page.name for page in built.rglob("*.html") if 'src="http' in page.read_text()]
    assert loaded == []
    search_without_a_server(built / "guides/model.html")


def search_without_a_server(page: Path) -> None:
    """Open the page as a file in Chromium and search."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if not program:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        opened = browser.new_page()
        opened.goto(page.as_uri())
        opened.keyboard.press("Control+k")
        opened.keyboard.type("idempotency key", delay=20)
        opened.wait_for_selector('a[href*="glossary.html"], a[href*="sdk.html"], a[href*="api.html"] >> mark')
        browser.close()
