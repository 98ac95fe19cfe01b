"""`python -m penstock.apps.notes.device`: a library in one file, on this machine.

`add`, `ls`, `search`, `export` and `import` work offline; `sync` exchanges changes with the server that
NOTES_URL names, as the user of NOTES_TOKEN (and with NOTES_KEY, the project's public key).
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import sys
from pathlib import Path

from penstock.apps.notes.device import (
    Cipher,
    HttpServer,
    Offline,
    ServerError,
    Store,
    build_export,
    import_merge,
    import_replace,
    outbox,
    sync,
)
from penstock.apps.notes.device.store import Record


def main(words: list[str] | None = None) -> int:
    """Run one command. Returns the exit code: 1 if it failed, 0 otherwise."""
    given = _parser().parse_args(words)
    try:
        store = Store(given.library, cipher=_cipher(given.key_file) if given.key_file else None)
        try:
            _run(store, given)
        finally:
            store.close()
    except (Offline, ServerError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m penstock.apps.notes.device", description=__doc__)
    parser.add_argument("--library", type=Path, default=Path("notes.db"), help="the file of the library")
    parser.add_argument(
        "--key-file", type=Path, help="encrypt texts with the key in this file; it is created if missing"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    add = commands.add_parser("add", help="add a note")
    add.add_argument("text")
    add.add_argument("--tag", action="append", default=[], help="an idea of the note; may be repeated")
    commands.add_parser("ls", help="list notes")
    commands.add_parser("search", help="find notes by words or their beginnings").add_argument("text")
    commands.add_parser("sync", help="push changes, then pull those of other devices")
    commands.add_parser("export", help="write the library as JSON").add_argument("file", type=Path)
    read = commands.add_parser("import", help="read an export")
    read.add_argument("file", type=Path)
    how = read.add_mutually_exclusive_group(required=True)
    how.add_argument("--merge", action="store_true", help="add rows with new ids")
    how.add_argument("--replace", action="store_true", help="make the library that of the export")
    return parser


def _run(store: Store, given: argparse.Namespace) -> None:
    if given.command == "add":
        print(f"Added {store.save('notes', text=given.text, tags=given.tag)['id']}.")
    elif given.command == "ls":
        _list(store.rows("notes"))
    elif given.command == "search":
        _list(store.search(given.text))
    elif given.command == "sync":
        _sync(store)
    elif given.command == "export":
        given.file.write_text(json.dumps(build_export(store), ensure_ascii=False), encoding="utf-8")
        print(f"Exported to {given.file}. The file is not encrypted.")
    else:
        document = json.loads(given.file.read_text(encoding="utf-8"))
        print(f"Imported {(import_merge if given.merge else import_replace)(store, document)} rows.")


def _sync(store: Store) -> None:
    url, token = os.environ.get("NOTES_URL", ""), os.environ.get("NOTES_TOKEN", "")
    if not url or not token:
        raise ValueError("set NOTES_URL and NOTES_TOKEN to sync")
    done = sync(store, HttpServer(url, os.environ.get("NOTES_KEY", ""), lambda: token))
    print(f"Pushed {done.applied}, pulled {done.pulled}, refused {done.refused}.")
    for refused in outbox.shelf(store.conn):
        print(f"refused: {refused.table} {refused.record['id']}: {refused.message} ({refused.code})")


def _list(notes: list[Record]) -> None:
    for note in notes:
        found: list[str] = note["tags"] or []
        tags = "".join(f" #{tag}" for tag in found)
        print(f"{note['id']}  {note['text']}{tags}")


def _cipher(file: Path) -> Cipher:
    if not file.exists():
        # Only the owner may read it, from the start.
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as made:
            made.write(base64.b64encode(Cipher.generate().key).decode())
    key = base64.b64decode(file.read_text(), validate=True)
    if len(key) != 32:
        raise ValueError(f"{file} has no key: it must contain 32 bytes as base64")
    return Cipher(key)


if __name__ == "__main__":
    raise SystemExit(main())
