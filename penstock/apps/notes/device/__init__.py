"""A device of the notes app: a library that works offline, in one SQLite file.

The reference for clients in other languages. `store.py` has the rows and their edits, `outbox.py` the queue
of changes, `sync.py` push, pull and merge, `http.py` the requests, `crypto.py` and `keys.py` the encryption,
`images.py` the images, `export.py` backups, `discovery.py` the search for ideas, `tables.py` what is synced
and what is not.

    store = Store("library.db")
    book = store.save("books", title="Walden")
    store.save("notes", book_id=book["id"], text="Simplify, simplify.")
    sync(store, HttpServer("https://notes.example.org", key, lambda: token))
"""

from penstock.apps.notes.device.crypto import Cipher
from penstock.apps.notes.device.export import build_export, import_merge, import_replace
from penstock.apps.notes.device.http import HttpServer, Offline, ServerError
from penstock.apps.notes.device.images import fill_previews, upload_image
from penstock.apps.notes.device.store import Store
from penstock.apps.notes.device.sync import Report, sync

__all__ = [
    "Cipher",
    "HttpServer",
    "Offline",
    "Report",
    "ServerError",
    "Store",
    "build_export",
    "fill_previews",
    "import_merge",
    "import_replace",
    "sync",
    "upload_image",
]
