"""Five more kinds of tasks, which `enqueue_job_v3` starts: notices, reports, copies, backups and consent.

A payload may have more fields than a task needs. The tenant is that of the job.
"""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import AsyncIterator
from typing import Any, LiteralString
from uuid import UUID

from penstock import Context, Fail
from penstock.apps.intake.app import SERVICE, app
from penstock.contract import artifacts
from penstock.postgres import db

_BATCH = 5000


@app.task(kind="notification_delivery", transactional=True, starters=SERVICE)
async def deliver_notification(ctx: Context, subject: str, message: str = "", **rest: Any) -> int:
    """Notify the targets of the tenant. Returns their number."""
    options = {"key": f"intake.task:{ctx.task_id}"}
    return await db.value(
        ctx.connection,
        "notify",
        p_tenant_id=ctx.tenant_id,
        p_subject=subject[:200],
        p_body=message or subject,
        p_options=options,
    )


@app.task(kind="consent_verification", starters=SERVICE)
async def verify_consent(ctx: Context, patient_id: UUID, **rest: Any) -> dict[str, bool]:
    """Fail unless the patient has consented to processing by models."""
    async with app.connections() as pool:
        statement = "select intake.has_consent(%s, %s)"
        [(is_given,)] = await db.rows(pool, statement, (ctx.tenant_id, patient_id))
    if not is_given:
        raise Fail("the patient has not consented to processing by models", code="no_consent")
    return {"has_consented": True}


@app.task(kind="report_generation", timeout="5m", starters=SERVICE)
async def make_report(ctx: Context, **rest: Any) -> dict[str, Any]:
    """The tenant's usage by month as CSV and PDF, kept."""
    names = "month files pages tokens minutes storage_mb plan"
    statement = """\
select billing_cycle_start, shell_files_uploaded, total_pages_processed, ai_tokens_used,
  ai_processing_minutes, storage_used_mb, plan_type
from intake.user_usage_tracking where profile_id = %s order by billing_cycle_start"""
    async with app.connections() as pool:
        rows = await db.rows(pool, statement, (ctx.tenant_id,))
    text = io.StringIO()
    csv.writer(text).writerows([names.split(), *rows])
    saved = await _keep(ctx, "usage.csv", text.getvalue().encode(), "text/csv")
    page = await asyncio.to_thread(_table, [names.split(), *rows])
    return {**saved, "pdf": await _keep(ctx, "usage.pdf", page, "application/pdf")}


@app.task(kind="audit_cleanup", timeout="10m", starters=SERVICE)
async def archive_audit(ctx: Context, days: int = 90, **rest: Any) -> dict[str, Any]:
    """Copy audit lines of the tenant that are older than `days` to storage. Removes nothing."""
    statement = """\
select a.id, to_jsonb(a) from penstock.audit_log a where a.tenant_id = %s and a.id > %s
  and a.at < penstock.clock() - make_interval(days => %s) order by a.id limit %s"""
    lines = Lines(statement, ctx.tenant_id, 0, days)
    saved = await _keep(ctx, "audit.jsonl", lines.read(), "application/x-ndjson")
    return {**saved, "lines": lines.count, "digest": saved["sha256"]}


@app.task(kind="backup_operation", timeout="10m", starters=SERVICE)
async def list_backup(ctx: Context, **rest: Any) -> dict[str, Any]:
    """A list of the tenant's files and results, with path and digest of each original."""
    statement = """\
select f.id, jsonb_build_object('id', f.id, 'name', f.name, 'status', f.status, 'patient_id', f.patient_id,
    'path', a.path, 'sha256', a.sha256, 'bytes', a.bytes, 'results', (
      select jsonb_object_agg(r.pass, r.summary) from intake.shell_file_results r
      where r.tenant_id = f.tenant_id and r.shell_file_id = f.id))
from intake.shell_files f left join penstock.artifacts a on a.id = f.artifact_id
where f.tenant_id = %s and f.id > %s order by f.id limit %s"""
    lines = Lines(statement, ctx.tenant_id, UUID(int=0))
    saved = await _keep(ctx, "backup.jsonl", lines.read(), "application/x-ndjson")
    return {**saved, "files": lines.count}


class Lines:
    """The rows of a query as lines of JSON, however many they are. The query takes the tenant, the key after
    which to go on, any other values and a limit, and returns the key and the document of each row."""

    def __init__(self, statement: LiteralString, tenant_id: UUID, after: Any, *values: Any) -> None:
        self._statement: LiteralString = statement
        self._tenant_id, self._after, self._values = tenant_id, after, values
        self.count = 0

    async def read(self) -> AsyncIterator[bytes]:
        """Read to the end, and count."""
        self.count = 0
        after = self._after
        while True:
            async with app.connections() as pool:
                arguments = (self._tenant_id, after, *self._values, _BATCH)
                rows = await db.rows(pool, self._statement, arguments)
            if not rows:
                return
            after = rows[-1][0]
            self.count += len(rows)
            yield "".join(json.dumps(line, ensure_ascii=False) + "\n" for _, line in rows).encode()


def _table(rows: list[Any]) -> bytes:
    """The rows as a table on a PDF page. Values are data, never markup."""
    import typst

    source = b"""\
#set page(paper: "a4", flipped: true)
#let rows = json(bytes(sys.inputs.rows))
= Usage
#table(columns: rows.first().len(), ..rows.flatten().map(cell => text(cell)))"""
    cells = [[str(value) for value in row] for row in rows]
    made = typst.compile(source, format="pdf", sys_inputs={"rows": json.dumps(cells)})
    assert isinstance(made, bytes)
    return made


async def _keep(ctx: Context, name: str, data: artifacts.Data, content_type: str) -> dict[str, Any]:
    saved = await ctx.asave(name, data, content_type)
    async with app.connections() as pool:
        subject = f"intake.task:{ctx.task_id}"
        await artifacts.keep(pool, artifact_id=UUID(saved["artifact_id"]), subject=subject)
    return saved
