"""The plain install: workers and clients need no optional package, and a missing one is named in one line."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from penstock.extras import EXTRAS

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Makes Python behave as if the packages of all extras were not installed.
WITHOUT_EXTRAS = f"""
import importlib.abc, importlib.util, sys
BLOCKED = {set(EXTRAS)!r}
class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocked())
"""


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS + code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_workers_and_clients_need_no_extra() -> None:
    found = python("""
import penstock, penstock.cli, penstock.doctor, penstock.sources, penstock.storage.objects, penstock.upkeep
import penstock.sdk.load, penstock.testing, penstock.worker
for name in penstock.__all__:
    getattr(penstock, name)
print("fine")
""")
    assert (found.stdout, found.stderr, found.returncode) == ("fine\n", "", 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "extra"),
    [(["serve"], "server"), (["simulate"], "server"), (["dev"], "server"), (["migrate"], "embedded")],
    ids=lambda value: str(value),
)
def test_commands_name_the_missing_extra_in_one_line(
    arguments: list[str], extra: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    # find_spec of a blocked package raises, so the embedded server's check is told that there is none.
    found = python(f"""
importlib.util.find_spec = lambda name: None
from penstock import cli
sys.exit(cli.execute({arguments!r}))
""")
    assert found.returncode == 1 and "Traceback" not in found.stderr, found.stderr
    assert f"install penstock[{extra}]" in found.stderr.splitlines()[0]


def test_an_excel_file_names_the_missing_extra(tmp_path: Path) -> None:
    (tmp_path / "ideas.xlsx").write_bytes(b"PK\x03\x04")
    found = python(f"""
from penstock import PenstockError, sources
try:
    sources.open({str(tmp_path / "ideas.xlsx")!r})
except PenstockError as error:
    print(error.code, error.message)
""")
    assert found.stdout == "missing_extra openpyxl is not installed: install penstock[sheets]\n", found.stderr


def test_a_device_needs_only_its_own_extra() -> None:
    use = """
import contextlib
from penstock import PenstockError
try:
    from penstock.apps.notes.device import Cipher, HttpServer, Store, sync
    with contextlib.closing(Store()) as store:
        print(store.save("books", title="Walden")["title"])
except PenstockError as error:
    print(error.code, error.message)
"""
    missing = python(use)
    assert missing.stdout == "missing_extra cryptography is not installed: install penstock[device]\n", (
        missing.stderr
    )
    others = """
import penstock.apps.notes.device.__main__, penstock.apps.notes.device.discovery, penstock.apps.notes.device.keys
tops = {name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names
print(sorted(name for name in tops if not name.startswith("_")))
"""
    found = python('BLOCKED.remove("cryptography")' + use + others)
    assert (found.stdout, found.stderr) == ("Walden\n['cryptography', 'penstock']\n", "")


def test_every_package_of_an_extra_is_in_the_table() -> None:
    imported = {"pyjwt": "jwt", "pillow": "PIL", "google-auth": "google"}
    for extra in ("server", "sheets", "embedded", "device", "apps"):
        names = {Requirement(text).name for text in PROJECT["optional-dependencies"][extra]} - {"penstock"}
        packages = {imported.get(name, name.replace("-", "_")) for name in names}
        assert packages == {package for package, of in EXTRAS.items() if of == extra}, extra
    core = {Requirement(text).name.replace("-", "_") for text in PROJECT["dependencies"]}
    assert not core & set(EXTRAS)
