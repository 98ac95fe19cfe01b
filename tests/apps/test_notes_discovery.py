"""Ideas that a device of the notes app discovers in its notes, on the device or with a managed model."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.apps.notes.device import (
    HttpServer,
    Offline,
    ServerError,
    Store,
    discovery,
)

CANON = frozenset({"Courage", "Justice", "Time"})


class TestDiscovery:
    """R2.13/local-discovery: on the device, with a preview, roles, undo, retries and pauses."""

    def answers(self, notes: list[dict[str, Any]]) -> dict[str, discovery.Ideas]:
        self.asked.append([note["id"] for note in notes])
        return {note["id"]: {"core": ["Courage"], "supporting": ["Time", "Courage"]} for note in notes}

    @pytest.fixture(autouse=True)
    def _notes(self, store: Store) -> None:
        self.asked: list[list[str]] = []
        for n in range(7):
            store.save("notes", id=f"n{n}", text=f"text {n}", source="a" if n < 3 else "b")
        store.save("notes", id="tagged", text="x", tags=["own"])

    def test_groups_stay_together_where_they_fit(self, store: Store) -> None:
        batches = discovery.group_and_pack(discovery.snapshot_orphans(store.rows("notes")), 4)
        assert [batch.note_ids for batch in batches] == [["n0", "n1", "n2"], ["n3", "n4", "n5", "n6"]]
        large = discovery.group_and_pack(discovery.snapshot_orphans(store.rows("notes")), 2)
        assert [len(batch.note_ids) for batch in large] == [2, 1, 2, 2]

    def test_nothing_is_applied_before_the_preview_is_confirmed(self, store: Store) -> None:
        job = discovery.start(store, size=4)
        discovery.run(store, job, self.answers, CANON)
        assert job.status == "preview" and job.preview and self.asked == [["n0", "n1", "n2"]]
        assert all(note["tags"] in ([], ["own"]) for note in store.rows("notes"))
        with pytest.raises(ValueError, match="running"):
            discovery.start(store)
        discovery.confirm_preview(store, job, CANON)
        discovery.run(store, job, self.answers, CANON)
        assert job.status == "done" and len(self.asked) == 2, "the preview is not asked for again"
        assert job.counts == {"applied": 7, "skipped": 0, "failed": 0}
        note = store.get("notes", "n0")
        assert note and note["tags"] == ["Courage", "Time"]
        assert job.applied_detail["n0"]["added"] == [
            {"name": "Courage", "role": "core"}, {"name": "Time", "role": "supporting"},
        ]  # fmt: skip
        assert discovery.undo_idea(store, job, "n0", "Time") == [{"name": "Time", "role": "supporting"}]
        assert discovery.undo_note(store, job, "n0") == [{"name": "Courage", "role": "core"}]
        assert discovery.undo_note(store, job, "n0") == []
        note = store.get("notes", "n0")
        assert note and note["tags"] == []

    def test_a_crash_resumes_and_skips_what_is_tagged(self, store: Store) -> None:
        job = discovery.start(store, size=4)
        discovery.run(store, job, self.answers, CANON)
        discovery.confirm_preview(store, job, CANON)

        def die(notes: list[dict[str, Any]]) -> dict[str, discovery.Ideas]:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            discovery.run(store, job, die, CANON)
        store.save("notes", id="n3", tags=["by another device"])
        again = discovery.active_job(store)
        assert again and again.batches[1].status == "pending" and again.batches[1].attempts == 0
        discovery.run(store, again, self.answers, CANON)
        assert again.status == "done" and self.asked[-1] == ["n4", "n5", "n6"]
        note = store.get("notes", "n3")
        assert note and note["tags"] == ["by another device"]

    def test_a_poisoned_batch_is_set_aside_after_three_tries(self, store: Store) -> None:
        job = discovery.start(store, size=4)

        def fail(notes: list[dict[str, Any]]) -> dict[str, discovery.Ideas]:
            if notes[0]["id"] == "n0":
                self.asked.append([])
                raise RuntimeError
            return self.answers(notes)

        discovery.run(store, job, fail, CANON)
        assert len(self.asked) == 4 and job.batches[0].status == "failed" and job.status == "preview"
        discovery.confirm_preview(store, job, CANON)
        discovery.run(store, job, fail, CANON)
        assert job.status == "done" and job.counts == {"applied": 4, "skipped": 0, "failed": 3}

    def test_a_429_pauses_until_the_user_continues(self, store: Store) -> None:
        job = discovery.start(store, size=4)
        is_limited = True

        def limited(notes: list[dict[str, Any]]) -> dict[str, discovery.Ideas]:
            if is_limited:
                raise discovery.Limited
            return self.answers(notes)

        discovery.run(store, job, limited, CANON)
        discovery.run(store, job, limited, CANON)
        assert job.status == "paused" and job.batches[0].attempts == 0
        is_limited = False
        discovery.continue_paused(store, job)
        assert discovery.run(store, job, limited, CANON).status == "preview"
        discovery.cancel(store, job)
        assert discovery.active_job(store) is None

    def test_a_device_without_a_network_pauses(self, store: Store) -> None:
        """Else three quick tries would set every batch aside."""
        job = discovery.start(store, size=4)

        def away(notes: list[dict[str, Any]]) -> dict[str, discovery.Ideas]:
            raise Offline("no network")

        discovery.run(store, job, away, CANON)
        assert job.status == "paused" and job.batches[0].attempts == 0 and job.counts["failed"] == 0
        again = discovery.active_job(store)
        assert again
        discovery.continue_paused(store, again)
        assert discovery.run(store, again, self.answers, CANON).status == "preview"

    def test_texts_are_redacted_before_they_leave(self, store: Store) -> None:
        """R2.13/local-discovery: addresses and numbers are removed on the device; its own copy keeps them."""
        text = "Write to ann@example.org or +49 30 1234567 about justice"
        store.save("notes", id="n0", text=text, tags=[])
        seen: list[str] = []

        def answers(notes: list[dict[str, Any]]) -> dict[str, discovery.Ideas]:
            seen.extend(note["text"] for note in notes)
            return self.answers(notes)

        discovery.run(store, discovery.start(store), answers, CANON)
        assert "Write to [email] or [phone] about justice" in seen
        note = store.get("notes", "n0")
        assert note and note["text"] == text

    def test_a_locked_device_asks_nothing_about_ciphertext(self, store: Store) -> None:
        store.put("notes", {**store.rows("notes")[0], "id": "sealed", "text": "enc:v1:AAAA"})
        assert "sealed" not in {note["id"] for note in discovery.snapshot_orphans(store.rows("notes"))}

    def test_managed_model_gets_a_bounded_text_and_the_users_ideas(self, store: Store) -> None:
        """A note that is too long, or that the guard dropped, does not fail its batch."""
        bodies: list[Any] = []

        class Server(HttpServer):
            """Answers like the server's function."""

            def invoke(self, function: str, body: Any) -> Any:
                bodies.append((function, body))
                if len(bodies) > 1:
                    raise ServerError(429, "quota_exceeded", "")
                return {
                    "results": {"long": {"core": ["Mine"], "supporting": []}, "bad": {"error": "screened"}}
                }

        store.save("notes", id="long", text="x" * 30_000)
        ask = discovery.managed(Server("http://localhost", "key", lambda: "token"), ["Mine"])
        found = ask([note for note in store.rows("notes") if note["id"] == "long"])
        assert found == {"long": {"core": ["Mine"], "supporting": []}}
        [(function, body)] = bodies
        assert function == "anthropic-proxy" and body["customIdeas"] == ["Mine"]
        assert [len(note["text"]) for note in body["notes"]] == [20_000]
        with pytest.raises(discovery.Limited):
            ask([])

    def test_own_tags_stay_and_ideas_are_merged(self) -> None:
        ideas: discovery.Ideas = {"core": ["Justice"], "supporting": ["Time", "Justice"]}
        assert discovery.compute_applied_tags(["own", "Courage", "Time"], ideas, CANON) == [
            "own",
            "Justice",
            "Time",
        ]
