"""A small run of `python -m faults.sync_devices`, and whether it finds what is planted in a good end."""

from __future__ import annotations

import pytest

from faults import sync_devices

pytestmark = pytest.mark.slow


@pytest.mark.timeout(900)
@pytest.mark.parametrize("major", [18, 15])
def test_killed_devices_api_and_postgresql_lose_no_edit(major: int) -> None:
    """R2.8/replays: SIGKILL of each; the devices converge, and the run finds a lost edit and a lost row."""
    with sync_devices.running(major, seed=5) as run:
        for fault in ("device.killed", "api.killed", "postgres.killed", "device.killed", "backend.killed"):
            run.break_something(fault)
        assert run.problems() == []
        [note] = run.postgres.execute(
            "select user_id, id from notes.notes where text = (select max(text::integer)::text from notes.notes"
            " where id ~ '^u') and id ~ '^u' limit 1"
        )
        run.postgres.execute(
            "update notes.notes set text = '0' where user_id = %s and id = %s", [note["user_id"], note["id"]]
        )
        found = run.problems()
        assert [problem for problem in found if "is lost" in problem] and len(found) == 1
        run.postgres.execute("alter table notes.notes disable trigger t04_horizon")
        run.postgres.execute(
            "delete from notes.notes where user_id = %s and id = %s", [note["user_id"], note["id"]]
        )
        assert len([problem for problem in run.problems() if "instead of" in problem]) == sync_devices.DEVICES
