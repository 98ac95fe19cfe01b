"""The store of a device, as the tests of the notes app use it."""

from __future__ import annotations

from penstock.apps.notes.device import Store


class Ticking:
    """A clock that advances with each reading."""

    def __init__(self) -> None:
        self.now = 1_790_000_000_000

    def __call__(self) -> int:
        self.now += 10
        return self.now


def fill(store: Store) -> None:
    """A row in every table."""
    book = store.save("books", id="b", title="Walden", isbn="978", cover_url="https://x/c.jpg")
    store.save("notes", id="n", book_id=book["id"], text="Simplify.", tags=["Time"], source_meta={"n": 1},
               image_data_url="data:canary")  # fmt: skip
    store.save("notes", id="m", text="More.")
    store.save("custom_ideas", id="i", name="Slowness")
    store.save("note_links", id="l", from_note_id="n", to_note_id="m", relation_type="supports")
    store.save("lenses", id="s", name="Lens", leaf_ids=["Time"])
    store.save("collections", id="c", name="Shelf")
    store.save("collection_memberships", collection_id="c", note_id="n")
    store.save("books", id="gone", title="Gone")
    store.delete("books", "gone")
