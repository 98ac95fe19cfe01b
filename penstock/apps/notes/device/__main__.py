"""`python -m penstock.apps.notes.device`: a library in one file, on this machine.

All commands but two work offline. `sync` exchanges changes with the server that NOTES_URL names, as the user
of NOTES_TOKEN (NOTES_KEY: the project's public key). `discover` asks its model for the ideas of notes.
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
    discovery,
    import_merge,
    import_replace,
    outbox,
    sync,
)
from penstock.apps.notes.device.store import Record
from penstock.apps.notes.device.sync import discard, retry


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
    edit = commands.add_parser("edit", help="change the text of a note")
    edit.add_argument("id")
    edit.add_argument("text")
    commands.add_parser("rm", help="delete a note").add_argument("id")
    commands.add_parser("restore", help="bring a deleted note back").add_argument("id")
    ls = commands.add_parser("ls", help="list notes")
    ls.add_argument("--deleted", action="store_true", help="list deleted notes instead")
    commands.add_parser("search", help="find notes by words or their beginnings").add_argument("text")
    commands.add_parser("sync", help="push changes, then pull those of other devices")
    refused = commands.add_parser("refused", help="list changes that the server refused")
    then = refused.add_mutually_exclusive_group()
    then.add_argument("--retry", type=int, metavar="NUMBER", help="send one again at the next sync")
    then.add_argument("--discard", type=int, metavar="NUMBER", help="take the server's row instead")
    find = commands.add_parser("discover", help="find ideas for notes without tags")
    find.add_argument("--yes", action="store_true", help="apply the preview without asking")
    find.add_argument("--cancel", action="store_true", help="end the run; applied ideas stay")
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
    elif given.command in ("edit", "rm", "restore"):
        _change(store, given)
    elif given.command == "ls":
        notes = store.rows("notes", with_deleted=given.deleted)
        _list([note for note in notes if note["deleted"] == given.deleted])
    elif given.command == "search":
        _list(store.search(given.text))
    elif given.command == "sync":
        print(f"{str(sync(store, _server())).capitalize()}.")
        _list_refused(store)
    elif given.command == "refused":
        _answer_refused(store, given)
    elif given.command == "discover":
        _discover(store, given)
    elif given.command == "export":
        given.file.write_text(json.dumps(build_export(store), ensure_ascii=False), encoding="utf-8")
        print(f"Exported to {given.file}. The file is not encrypted.")
    else:
        document = json.loads(given.file.read_text(encoding="utf-8"))
        print(f"Imported {(import_merge if given.merge else import_replace)(store, document)} rows.")


def _server() -> HttpServer:
    url, token = os.environ.get("NOTES_URL", ""), os.environ.get("NOTES_TOKEN", "")
    if not url or not token:
        raise ValueError("set NOTES_URL and NOTES_TOKEN to sync")
    # Longer than a managed call may take.
    return HttpServer(url, os.environ.get("NOTES_KEY", ""), lambda: token, timeout=120)


def _change(store: Store, given: argparse.Namespace) -> None:
    note = store.get("notes", given.id)
    if note is None or note["deleted"] != (given.command == "restore"):
        state = "deleted note" if given.command == "restore" else "note"
        raise ValueError(f"there is no {state} {given.id}")
    if given.command == "edit":
        store.save("notes", id=given.id, text=given.text)
    elif given.command == "rm":
        store.delete("notes", given.id)
    else:
        store.undelete("notes", given.id)


def _answer_refused(store: Store, given: argparse.Namespace) -> None:
    number = given.retry if given.retry is not None else given.discard
    if number is None:
        _list_refused(store)
        return
    answer = retry if given.retry is not None else discard
    if not answer(store, number):
        raise ValueError(f"there is no refused change {number}")


def _list_refused(store: Store) -> None:
    for each in outbox.shelf(store.conn):
        print(f"refused {each.number}: {each.table} {each.record['id']}: {each.message} ({each.code})")


def _discover(store: Store, given: argparse.Namespace) -> None:
    job = discovery.active_job(store)
    if given.cancel:
        if job is not None:
            discovery.cancel(store, job)
        return
    ask = discovery.managed(_server(), [idea["name"] for idea in store.rows("custom_ideas")])
    job = job or discovery.start(store)
    discovery.continue_paused(store, job)
    discovery.run(store, job, ask)
    if job.status == "preview" and job.preview is not None:
        for id, found in job.preview.items():
            _list(
                [
                    {**note, "tags": [*found["core"], *found["supporting"]]}
                    for note in (store.get("notes", id),)
                    if note
                ]
            )
        if (
            not given.yes
            and input("Apply these, and tag the other notes without asking? [y/N] ").lower() != "y"
        ):
            print("Nothing was applied. Run discover again to decide, or with --cancel to end the run.")
            return
        discovery.confirm_preview(store, job)
        discovery.run(store, job, ask)
    print("Tagged {applied}, skipped {skipped}, failed {failed}.".format(**job.counts))
    if job.status == "paused":
        print(
            "Paused: the limit is reached, or the server cannot be reached. Run discover again to continue."
        )


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
