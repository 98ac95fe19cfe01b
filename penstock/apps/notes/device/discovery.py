"""Finds ideas for a backlog of untagged notes, driven by the device.

Works on encrypted libraries, because the device reads the texts. The state of a run is a row of the table
`discovery_jobs`, which stays on the device; the resulting tags are ordinary edits of notes, which sync. The
first batch is a preview that the user confirms; the rest is applied without asking. A run survives a crash.
Personal data is removed from the texts before they leave the device.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any, Literal, TypedDict

from penstock.apps.notes.canon import CANON, MOST_IDEAS
from penstock.apps.notes.device.crypto import is_sealed
from penstock.apps.notes.device.http import HttpServer, Offline, ServerError
from penstock.apps.notes.device.store import Record, Store
from penstock.redaction import redact_personal

BATCH = 25
"""Notes of one call of the model."""
MOST_CHARACTERS = 20_000
"""How much of a note's text the managed model gets."""
MAX_ATTEMPTS = 3
Status = Literal["running", "preview", "paused", "done", "canceled"]
BatchStatus = Literal["pending", "in_flight", "done", "failed"]


class Ideas(TypedDict):
    """What the model found in a note."""

    core: list[str]
    supporting: list[str]


IDEAS = frozenset(CANON)
Discover = Callable[[list[Record]], dict[str, Ideas]]
"""Asks the model about some notes, whose texts are redacted; the result has the ideas by note id. Raises
Limited on a 429, and Offline without a network."""


class Limited(Exception):
    """The quota is used up: the run pauses, and continues when the user resumes it."""


@dataclass
class Batch:
    """Notes that one call covers."""

    batch_id: str
    note_ids: list[str]
    status: BatchStatus = "pending"
    attempts: int = 0


@dataclass
class Job:
    """A run: its batches, the next one, the preview, and the ideas that were applied to each note."""

    id: str
    status: Status = "running"
    origin: str = "user"
    max_ideas: int = MOST_IDEAS
    created_at: int = 0
    updated_at: int = 0
    batches: list[Batch] = field(default_factory=list[Batch])
    cursor: int = 0
    preview: dict[str, Ideas] | None = None
    applied_detail: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """Note id → {"added": [{"name", "role"}], "preserved": [tags]}. Roles are never stored in tags."""
    counts: dict[str, int] = field(default_factory=lambda: {"applied": 0, "skipped": 0, "failed": 0})


# Pure functions


def snapshot_orphans(notes: Iterable[Record]) -> list[Record]:
    """The notes without tags that have a text. A locked device has only the ciphertext of some."""
    return [
        note
        for note in notes
        if not note["deleted"] and not note["tags"] and note["text"] and not is_sealed(note["text"])
    ]


def group_and_pack(notes: Iterable[Record], size: int = BATCH) -> list[Batch]:
    """Batches of at most `size` notes. Notes of one source stay together where they fit."""
    ordered = sorted(notes, key=lambda note: (note["book_id"] or "", note["source"] or "", note["id"]))
    packed: list[list[str]] = [[]]
    for _, group in groupby(ordered, key=lambda note: (note["book_id"], note["source"])):
        ids = [note["id"] for note in group]
        for chunk in (ids[start : start + size] for start in range(0, len(ids), size)):
            if len(packed[-1]) + len(chunk) > size:
                packed.append([])
            packed[-1] += chunk
    return [Batch(uuid.uuid4().hex, ids) for ids in packed if ids]


def compute_applied_tags(
    tags: Sequence[str], ideas: Ideas, canon: frozenset[str], most: int = MOST_IDEAS
) -> list[str]:
    """A note's own tags that are no ideas of the canon, then core and supporting ideas, each once."""
    own = [tag for tag in tags if tag not in canon]
    found = [idea for idea in dict.fromkeys([*ideas["core"], *ideas["supporting"]]) if idea not in own]
    return [*dict.fromkeys(own), *found[:most]]


def mark_in_flight(batch: Batch) -> None:
    """Note that the model is being asked."""
    batch.status = "in_flight"
    batch.attempts += 1


def on_batch_error(job: Job, batch: Batch) -> None:
    """Try a batch again, up to three times; then set it aside and continue with the next."""
    if batch.attempts < MAX_ATTEMPTS:
        batch.status = "pending"
        return
    batch.status = "failed"
    job.counts["failed"] += len(batch.note_ids)
    job.cursor += 1


def resume_job(job: Job) -> None:
    """After a crash: ask again about the batch that was in flight."""
    for batch in job.batches:
        if batch.status == "in_flight":
            batch.status = "pending"
            batch.attempts -= 1


# A run


def managed(server: HttpServer, custom: Sequence[str] = ()) -> Discover:
    """Asks the managed model of the server, with the user's own ideas beside the canon.

    The server may take 90 seconds to answer: give it a `timeout` above that.
    """

    def ask(notes: list[Record]) -> dict[str, Ideas]:
        sent = [{"id": note["id"], "text": note["text"][:MOST_CHARACTERS]} for note in notes]
        body = {"action": "discover_batch", "notes": sent, "customIdeas": list(custom)}
        try:
            found: dict[str, Any] = server.invoke("anthropic-proxy", body)["results"]
        except ServerError as error:
            if error.status == 429:
                raise Limited from error
            raise
        # A note that the guard dropped has an error instead of ideas.
        return {key: each for key, each in found.items() if "core" in each}

    return ask


def active_job(store: Store) -> Job | None:
    """The run that has not ended, if there is one."""
    row = store.conn.execute(
        "select document from discovery_jobs where status in ('running', 'preview', 'paused')"
    ).fetchone()
    return _load(row[0]) if row else None


def start(store: Store, *, origin: str = "user", size: int = BATCH) -> Job:
    """Begin a run over the untagged notes. There is one at a time."""
    if active_job(store) is not None:
        raise ValueError("a discovery is running: finish or cancel it first")
    job = Job(
        uuid.uuid4().hex,
        origin=origin,
        created_at=store.now_ms(),
        batches=group_and_pack(snapshot_orphans(store.rows("notes")), size),
    )
    if not job.batches:
        job.status = "done"
    save(store, job)
    return job


def run(store: Store, job: Job, discover: Discover, canon: frozenset[str] = IDEAS) -> Job:
    """Work until the preview is ready, the run is done, the quota is used up or the network is away."""
    while job.status == "running" and job.cursor < len(job.batches):
        batch = job.batches[job.cursor]
        notes = live_pending(store, batch)
        if not notes:
            job.counts["skipped"] += len(batch.note_ids)
            _end_batch(job, batch)
        elif not _ask(store, job, batch, notes, discover, canon):
            continue
        save(store, job)
    if job.status == "running":
        job.status = "done"
    save(store, job)
    return job


def _ask(
    store: Store, job: Job, batch: Batch, notes: list[Record], discover: Discover, canon: frozenset[str]
) -> bool:
    """Ask about one batch. Returns whether it was answered."""
    mark_in_flight(batch)
    save(store, job)
    try:
        found = discover([{**note, "text": redact_personal(note["text"])} for note in notes])
    except (Limited, Offline):
        batch.status = "pending"
        batch.attempts -= 1
        job.status = "paused"
    except Exception:
        on_batch_error(job, batch)
    else:
        if job.preview is None:
            job.preview = found
            job.status = "preview"
            batch.status = "pending"
        else:
            apply_results(store, job, batch, found, canon)
            return True
    save(store, job)
    return False


def confirm_preview(store: Store, job: Job, canon: frozenset[str] = IDEAS) -> None:
    """Apply the previewed batch without asking the model again, and let the rest run."""
    if job.status != "preview" or job.preview is None:
        raise ValueError(f"there is no preview to confirm: the run is {job.status}")
    job.status = "running"
    apply_results(store, job, job.batches[job.cursor], job.preview, canon)


def continue_paused(store: Store, job: Job) -> None:
    """Continue after the quota was raised, a new month began, or the network came back."""
    if job.status == "paused":
        job.status = "running"
        save(store, job)


def cancel(store: Store, job: Job) -> None:
    """End a run; applied ideas stay."""
    job.status = "canceled"
    save(store, job)


def live_pending(store: Store, batch: Batch) -> list[Record]:
    """The notes of a batch that are still untagged: another device may have tagged some meanwhile."""
    notes = [note for id in batch.note_ids if (note := store.get("notes", id))]
    return snapshot_orphans(notes)


def apply_results(
    store: Store, job: Job, batch: Batch, found: dict[str, Ideas], canon: frozenset[str]
) -> None:
    """Tag the notes, record each added idea with its role, and end the batch, in one transaction."""
    with store.transaction():
        for note in live_pending(store, batch):
            ideas = found.get(note["id"])
            if not ideas or not (ideas["core"] or ideas["supporting"]):
                job.counts["skipped"] += 1
                continue
            tags = compute_applied_tags(note["tags"], ideas, canon, job.max_ideas)
            store.save("notes", id=note["id"], tags=tags)
            roles = {
                **dict.fromkeys(ideas["supporting"], "supporting"),
                **dict.fromkeys(ideas["core"], "core"),
            }
            job.applied_detail[note["id"]] = {
                "added": [{"name": tag, "role": roles[tag]} for tag in tags if tag in roles],
                "preserved": [tag for tag in tags if tag not in roles],
            }
            job.counts["applied"] += 1
        _end_batch(job, batch)
        save(store, job)


def undo_note(store: Store, job: Job, note_id: str) -> list[dict[str, str]]:
    """Remove what the run added to a note. Returns the removed ideas with their roles."""
    added = job.applied_detail.get(note_id, {}).get("added", [])
    return [each for idea in list(added) for each in undo_idea(store, job, note_id, idea["name"])]


def undo_idea(store: Store, job: Job, note_id: str, name: str) -> list[dict[str, str]]:
    """Remove one idea that the run added to a note. Returns it with its role, for statistics."""
    detail = job.applied_detail.get(note_id, {"added": []})
    removed = [idea for idea in detail["added"] if idea["name"] == name]
    note = store.get("notes", note_id)
    if not removed or note is None:
        return []
    with store.transaction():
        if name in (note["tags"] or []):
            store.save("notes", id=note_id, tags=[tag for tag in note["tags"] if tag != name])
        detail["added"] = [idea for idea in detail["added"] if idea["name"] != name]
        save(store, job)
    return removed


def _end_batch(job: Job, batch: Batch) -> None:
    batch.status = "done"
    job.cursor += 1


def save(store: Store, job: Job) -> None:
    """Store the state of a run on this device."""
    job.updated_at = store.now_ms()
    store.conn.execute(
        "insert or replace into discovery_jobs values (?, ?, ?)",
        (job.id, job.status, json.dumps(asdict(job))),
    )


def _load(document: str) -> Job:
    found: dict[str, Any] = json.loads(document)
    batches = [Batch(**batch) for batch in found.pop("batches")]
    job = Job(**found, batches=batches)
    resume_job(job)
    return job
