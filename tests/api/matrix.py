"""What the matrix tests share: the objects of a tenant, and how a call gets their ids."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, fields, replace
from typing import Any

from psycopg.types.json import Jsonb

from tests.api.conftest import Person, World

CANARY = "canary of ann"
TASKS = [{"kind": "work", "input": {"note": CANARY}}]
ROLES = ("anon", "worker", "viewer", "member", "admin", "owner", "service")


@dataclass(frozen=True)
class Things:
    """The objects of a tenant, by their names in routes."""

    tenant_id: uuid.UUID
    job_id: uuid.UUID
    failed_job: uuid.UUID
    paused_job: uuid.UUID
    task_id: int
    letter_id: int
    schedule_id: uuid.UUID
    target_id: uuid.UUID
    user_id: uuid.UUID
    key_id: uuid.UUID
    invitation_id: uuid.UUID
    provider: str
    artifact_id: uuid.UUID
    upload_id: uuid.UUID
    path: str
    bulk_id: uuid.UUID
    gated_job: uuid.UUID
    bulk_row: str
    wait_id: uuid.UUID
    operation_id: uuid.UUID
    token: str


@dataclass(frozen=True)
class Row:
    """A line of the matrix: the least role, the response to strangers, and the request."""

    least: str
    """One of ROLES; or `anybody`; or `nobody`, where a signature is checked instead of a role."""
    stranger: int
    query: str = ""
    body: Any = None
    about: dict[str, str] = field(default_factory=dict[str, str])
    """Which object of `Things` a name in the request means, where it is not the object of that name."""
    good: tuple[int, ...] = (200, 201, 204)
    is_stream: bool = False
    key: int | None = None
    """The status for a key of another tenant, if it differs from that for its users."""
    content: bytes | None = None
    """The request body, if it is not JSON."""


OF_TENANT = "?tenant_id={tenant_id}"


@dataclass(frozen=True)
class Call:
    """A line of the matrix for a function: the least role, the error for strangers (or None), and the arguments."""

    least: str
    stranger: str | None
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    about: dict[str, str] = field(default_factory=dict[str, str])
    good: str | None = None
    """The error for callers with the right role, if these arguments cannot succeed."""


def operations(document: dict[str, Any]) -> set[str]:
    return {f"{method.upper()} {path}" for path, item in document["paths"].items() for method in item}


def make(world: World, ann: Person) -> Things:
    """One object of each kind, all owned by ann and with her canary text."""
    connection = world.db.connect()

    def one(query: str, *values: Any) -> Any:
        row = connection.execute(query.encode(), values).fetchone()
        return next(iter(row.values())) if row else None

    def start(kind: str, confirm: bool = False, **options: Any) -> uuid.UUID:
        tasks = [{"kind": kind, "input": {"note": CANARY}, "confirm": confirm}]
        chosen = {"tenant_id": str(ann.tenant), **options}
        return one(
            "select penstock.start_job('report', %s, %s, %s)",
            Jsonb({"note": CANARY}),
            Jsonb(tasks),
            Jsonb(chosen),
        )

    for kind in ("work", "doomed", "draw", "sheet.load", "sheet.apply", "sheet.undo", "asking"):
        one("select penstock.define_kind(%s, '{\"raw_tasks\": true}')", kind)
    one("select penstock.define_job_type('sheet')")
    one("select penstock.define_job_type('report')")
    one("select penstock.define_job_type('t')")
    one("select penstock.define_bulk_type('sheet')")
    job = start("work")
    failed = start("doomed")
    # What an earlier retry left is claimed as well.
    for claimed in connection.execute(
        "select * from penstock.claim_tasks('w', 10, array['doomed'], 30)"
    ).fetchall():
        one(
            "select penstock.fail_task(p_task_id => %s, p_worker_id => 'w', p_error => %s, p_lease => %s, p_permanent => true)",
            claimed["id"],
            CANARY,
            claimed["lease"],
        )
    start("draw")
    for drawn in connection.execute(
        "select * from penstock.claim_tasks('w', 1, array['draw'], 30)"
    ).fetchall():
        begin = "select id, path from penstock.begin_artifact(%s, 'w', %s, %s, 'text/plain')"
        artifact: Any = connection.execute(begin, [drawn["id"], drawn["lease"], CANARY]).fetchone()
        finish = "select penstock.finish_artifact(%s, 'w', %s, 1, %s)"
        one(finish, artifact["id"], drawn["lease"], "0" * 64)
        one("select penstock.complete_task(%s, 'w', null, %s)", drawn["id"], drawn["lease"])
    start("asking")
    for asking in connection.execute(
        "select * from penstock.claim_tasks('w', 1, array['asking'], 30)"
    ).fetchall():
        options = Jsonb({"options": [CANARY], "message": CANARY, "link": True})
        wait = one(
            "select penstock.open_wait(%s, 'w', %s, %s, %s)", asking["id"], asking["lease"], CANARY, options
        )
        one("select penstock.park_task(%s, 'w', %s, %s)", asking["id"], asking["lease"], wait["id"])
    start("asking")
    for asking in connection.execute(
        "select * from penstock.claim_tasks('w', 1, array['asking'], 30)"
    ).fetchall():
        operation = one(
            "select penstock.begin_operation(%s, 'w', %s, %s, 300)",
            asking["id"],
            asking["lease"],
            f"{CANARY} {uuid.uuid4()}",
        )
        one("select penstock.park_operation(%s, 'w', %s, 30)", operation["id"], asking["lease"])
    begin = "select id, incoming from penstock.begin_upload(%s, 'text/plain', 1, %s)"
    upload: Any = connection.execute(begin, [CANARY, Jsonb({"tenant_id": str(ann.tenant)})]).fetchone()
    sent = world.app.state.settings.home / "artifacts" / upload["incoming"]
    sent.parent.mkdir(parents=True, exist_ok=True)
    sent.write_text("x")
    bulk = one(
        "select job_id from penstock.open_bulk('sheet', '{}', %s)", Jsonb({"tenant_id": str(ann.tenant)})
    )
    one("select penstock.add_bulk_rows(%s, %s)", bulk, Jsonb([{"number": 2, "data": {"title": CANARY}}]))
    connection.execute(
        "insert into penstock.bulk_changes (tenant_id, job_id, row_number, name, after, applied_at)"
        " values (%s, %s, 2, 'note', %s, penstock._now())",
        [ann.tenant, bulk, Jsonb(CANARY)],
    )
    name = f"ann/{uuid.uuid4().hex[:8]}"
    one("select penstock.set_provider(%s, '{}', %s)", name, ann.tenant)
    one("select penstock.set_provider(%s, '{}')", name)
    one("select penstock.set_price(%s, 'requests', 1, %s)", name, Jsonb({"tenant_id": str(ann.tenant)}))
    one("select penstock.set_limit(%s, 'requests', 1000000)", ann.tenant)
    one(
        "select penstock.record_usage('{\"requests\": 1}', p_tenant_id => %s, p_action => %s)",
        ann.tenant,
        CANARY,
    )
    one(
        "select penstock.record_cost('render', 1, p_tenant_id => %s, p_options => %s)",
        ann.tenant,
        Jsonb({"job_id": str(job), "reason": CANARY}),
    )
    # A tenant has a limited number of these.
    for table in ("notification_targets", "invitations"):
        connection.execute(f"delete from penstock.{table} where tenant_id = %s", [ann.tenant])
    things = Things(
        tenant_id=ann.tenant,
        job_id=job,
        failed_job=failed,
        paused_job=start("work", paused=True),
        task_id=one("select id from penstock.tasks where job_id = %s", job),
        letter_id=one("select id from penstock.dead_letters where job_id = %s", failed),
        schedule_id=one(
            "select penstock.set_schedule(%s, '0 3 * * *', 'report', penstock._now(), %s)",
            f"{CANARY} {uuid.uuid4()}",
            Jsonb({"tenant_id": str(ann.tenant)}),
        ),
        target_id=one(
            "select id from penstock.set_notification_target('webhook', %s, array['alert', 'job.failed'], %s)",
            f"https://example.com/{uuid.uuid4()}",
            Jsonb({"tenant_id": str(ann.tenant)}),
        ),
        user_id=one("select id from penstock.create_key(%s, 'member', %s)", CANARY, ann.tenant),
        key_id=one("select id from penstock.create_key(%s, 'member', %s)", CANARY, ann.tenant),
        invitation_id=one("select id from penstock.create_invitation('viewer', %s)", ann.tenant),
        provider=name,
        artifact_id=artifact["id"],
        upload_id=upload["id"],
        path=artifact["path"],
        bulk_id=bulk,
        gated_job=start("work", confirm=True),
        bulk_row=one("select r::text from penstock.bulk_rows r where job_id = %s", bulk),
        wait_id=uuid.UUID(wait["id"]),
        operation_id=uuid.UUID(operation["id"]),
        token=wait["token"],
    )
    connection.close()
    return things


_NOTHING: dict[str, Any] = {
    field.name: uuid.uuid4() if "UUID" in str(field.type) else 10**12 if field.type == "int" else "no/body"
    for field in fields(Things)
}
GHOST = Things(**_NOTHING)


def ghost(things: Things) -> Things:
    """The same objects with ids that do not exist."""
    row = things.bulk_row.replace(str(things.bulk_id), str(GHOST.bulk_id))
    return replace(GHOST, bulk_row=row.replace(str(things.tenant_id), str(GHOST.tenant_id)))


def filled(value: Any, things: Things, row: Row | Call) -> Any:
    """A template with the ids filled in; a template that is only an id becomes that value."""
    names = {field.name: getattr(things, field.name) for field in fields(Things)}
    names |= {name: names[other] for name, other in row.about.items()}
    names |= {"name": things.provider if row.least == "service" else "nightly", "gate": "none"}
    if isinstance(value, str):
        text = value.format(**names)
        return int(text) if value == "{letter_id}" else text
    if isinstance(value, dict):
        return {key: filled(item, things, row) for key, item in value.items()}
    return [filled(item, things, row) for item in value] if isinstance(value, list) else value


def state(world: World, ann: Person) -> list[Any]:
    """All rows of ann."""
    tables = """select c.relname as name from pg_class c join pg_attribute a on a.attrelid = c.oid
        where c.relnamespace = 'penstock'::regnamespace and c.relkind = 'r' and a.attname = 'tenant_id'
        order by 1"""
    with world.db.connect() as connection:
        names = [row["name"] for row in connection.execute(tables).fetchall()]
        lines = "select t::text as line from penstock.{} t where tenant_id = %s order by 1"
        return [
            (name, connection.execute(lines.format(name).encode(), [ann.tenant]).fetchall()) for name in names
        ]
