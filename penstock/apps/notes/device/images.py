"""Images of notes. The image stays on the device that took it; the server stores a copy and syncs its path.

Images are not encrypted.
"""

from __future__ import annotations

import base64
import binascii
import re
import urllib.parse

from penstock.apps.notes.device.http import HttpServer, ServerError
from penstock.apps.notes.device.store import Store

_DATA_URL = re.compile(r"data:(image/(?:jpeg|png|webp));base64,")
_TYPES = {b"\xff\xd8": "image/jpeg", b"\x89P": "image/png", b"RI": "image/webp"}


def upload_image(store: Store, server: HttpServer, note_id: str) -> None:
    """Send the image of a note that the server has already. The next sync brings its path."""
    note = store.get("notes", note_id)
    found = _DATA_URL.match((note or {}).get("image_data_url") or "")
    if note is None or found is None:
        raise ValueError(f"note {note_id} has no JPEG, PNG or WebP image on this device")
    try:
        data = base64.b64decode(note["image_data_url"][found.end() :], validate=True)
    except binascii.Error as error:
        raise ValueError(f"the image of note {note_id} is damaged") from error
    server.upload(f"image-upload?{_query(note_id)}", data, found[1])


def fill_previews(store: Store, server: HttpServer) -> int:
    """Download the images of other devices that this one lacks. Returns their number."""
    count = 0
    for note in store.rows("notes"):
        if not note["image_path"] or note["image_data_url"]:
            continue
        try:
            data = server.download(f"note-image?{_query(note['id'])}")
        except ServerError as error:
            if error.status == 404:
                # Another device has removed it meanwhile.
                continue
            raise
        kind = _TYPES.get(data[:2])
        current = store.get("notes", note["id"])
        if kind and current and not current["image_data_url"]:
            url = f"data:{kind};base64,{base64.b64encode(data).decode()}"
            store.put("notes", {**current, "image_data_url": url})
            count += 1
    return count


def _query(note_id: str) -> str:
    return urllib.parse.urlencode({"note_id": note_id})
