"""`make site`: build the documentation site from docs/ into build/site. `--pages` only gathers the pages.

build/site has the HTML, a Markdown twin beside each page, llms.txt (a list of the pages) and llms-full.txt
(all pages in one file). mkdocs.yml has the order of the pages; a page that it does not name is an error.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import yaml

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "build/pages"
SITE = ROOT / "build/site"
# Pages that do not live in docs/, by their name on the site.
OTHERS = {"index.md": "README.md", "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
# Browsers neither fetch files for a page that is itself a file, nor run workers from them.
_WORKER_OF_A_FILE = """window.Worker = class extends Worker {{
  constructor() {{ super(URL.createObjectURL(new Blob([{source}], {{ type: "text/javascript" }}))); }}
}};
"""
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")


class Broken(Exception):
    """A page that the site cannot show."""


def main() -> int:
    try:
        config = read_config()
        gather(PAGES)
        check_navigation(config)
    except Broken as error:
        print(error, file=sys.stderr)
        return 1
    if "--pages" in sys.argv:
        return 0
    shutil.rmtree(SITE, ignore_errors=True)
    built = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--clean", "--strict"], cwd=ROOT, check=False
    )
    if built.returncode:
        return built.returncode
    add_twins(config)
    let_files_search(SITE)
    broken = list(broken_links(SITE))
    print("\n".join(broken) or f"{len(list(SITE.rglob('*.html')))} pages in {SITE.relative_to(ROOT)}")
    return 1 if broken else 0


def read_config() -> dict[str, Any]:
    return cast("dict[str, Any]", yaml.safe_load((ROOT / "mkdocs.yml").read_text()))


def gather(target: Path) -> None:
    """Copy every page into one folder, with links that hold there."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(ROOT / "docs", target)
    for page in sorted(target.rglob("*.md")):
        page.write_text(_with_links(page.read_text(), ROOT / "docs" / page.relative_to(target), page, target))
    for name, source in OTHERS.items():
        page = target / name
        page.write_text(_with_links((ROOT / source).read_text(), ROOT / source, page, target))


def _with_links(text: str, source: Path, page: Path, target: Path) -> str:
    """The text of a page with its relative links turned into links between the gathered pages."""
    places = {(ROOT / path).resolve(): target / name for name, path in OTHERS.items()}

    def moved(found: re.Match[str]) -> str:
        link, _, anchor = found[2].partition("#")
        if not link or re.match(r"[a-z]+:", link):
            return found[0]
        file = (source.parent / link).resolve()
        if file.is_relative_to(ROOT / "docs"):
            place = target / file.relative_to(ROOT / "docs")
        elif file in places:
            place = places[file]
        else:
            # A file of the repository that is no page: name it without a link.
            return "](#)" if found[1] == "](" else found[0]
        way = os.path.relpath(place, page.parent)
        return f"{found[1]}{way}{'#' + anchor if anchor else ''}{found[3]}"

    return _LINK.sub(moved, text)


def titled(nav: list[Any]) -> Iterator[tuple[str, str, str]]:
    """Section, title and file of each page, in order."""
    for section in nav:
        [(name, pages)] = section.items()
        for page in pages:
            [(title, file)] = page.items()
            yield name, title, file


def check_navigation(config: dict[str, Any]) -> None:
    """Raise unless mkdocs.yml names each page once."""
    named = [file for _, _, file in titled(config["nav"])]
    pages = {str(path.relative_to(PAGES)) for path in PAGES.rglob("*.md")}
    if missing := sorted(pages - set(named)):
        raise Broken(f"mkdocs.yml does not name these pages: {', '.join(missing)}")
    if unknown := sorted(set(named) - pages):
        raise Broken(f"mkdocs.yml names pages that do not exist: {', '.join(unknown)}")
    if doubled := sorted({file for file in named if named.count(file) > 1}):
        raise Broken(f"mkdocs.yml names these pages twice: {', '.join(doubled)}")


def add_twins(config: dict[str, Any]) -> None:
    """A Markdown twin beside each page, llms.txt and llms-full.txt."""
    lines = [f"# {config['site_name']}", "", f"> {config['site_description']}."]
    texts: list[str] = []
    section = ""
    for name, title, file in titled(config["nav"]):
        if name != section:
            section = name
            lines += ["", f"## {name}", ""]
        text = (PAGES / file).read_text()
        lines.append(f"- [{title}]({file}): {summary(text)}")
        (SITE / file).parent.mkdir(parents=True, exist_ok=True)
        (SITE / file).write_text(text)
        _link_twin(SITE / file)
        texts.append(f"<!-- {file} -->\n\n{text}")
    (SITE / "llms.txt").write_text("\n".join(lines) + "\n")
    (SITE / "llms-full.txt").write_text("\n\n".join(texts))


def summary(text: str) -> str:
    """The first sentence below the heading of a page, without links and images."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    paragraphs = [part for part in re.split(r"\n\n+", prose.strip())[1:] if part[0] not in "#!<|>"]
    plain = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", " ".join(paragraphs[0].split()) if paragraphs else "")
    return re.split(r"(?<=[.:])\s", plain)[0].rstrip(":")


def _link_twin(twin: Path) -> None:
    """Name the Markdown twin in the head of the page, and link it at the end of its text."""
    page = twin.with_suffix(".html")
    html = page.read_text()
    head = f'<link rel="alternate" type="text/markdown" href="{twin.name}">'
    foot = f'<p class="twin"><small><a href="{twin.name}">This page as Markdown</a></small></p>'
    html = html.replace("</head>", f"{head}</head>", 1).replace("</article>", f"{foot}</article>", 1)
    page.write_text(html)


def let_files_search(site: Path) -> None:
    """Let the search also work in pages that are opened as files, without a server."""
    [worker] = (site / "assets/javascripts/workers").glob("search.*.js")
    (site / "search.js").write_text(f"var __index = {(site / 'search.json').read_text()};\n")
    offline = site / "assets/javascripts/offline.js"
    offline.write_text(_WORKER_OF_A_FILE.format(source=json.dumps(worker.read_text())))
    for page in site.rglob("*.html"):
        way = os.path.relpath(offline, page.parent)
        script = f'<script src="{way}"><\\/script>'
        tag = f"<script>location.protocol === 'file:' && document.write('{script}')</script>"
        page.write_text(page.read_text().replace("</head>", f"{tag}</head>", 1))


def broken_links(site: Path) -> Iterator[str]:
    """Links of the HTML pages to files or anchors that the site does not have."""
    ids: dict[Path, set[str]] = {}
    for page in sorted(site.rglob("*.html")):
        if page.name == "404.html":
            continue
        for link in re.findall(r'(?:href|src)="([^"]+)"', page.read_text()):
            path, _, anchor = link.partition("#")
            if re.match(r"[a-z]+:|//", link):
                continue
            file = (page.parent / path.partition("?")[0]).resolve() if path else page
            if not file.exists():
                yield f"{page.relative_to(site)}: {link}"
            elif anchor and file.suffix == ".html":
                if file not in ids:
                    ids[file] = set(re.findall(r'id="([^"]+)"', file.read_text()))
                if anchor not in ids[file]:
                    yield f"{page.relative_to(site)}: {link}"


if __name__ == "__main__":
    sys.exit(main())
