"""A small app of the tests that extends every layer: its tables, functions and pages."""

from __future__ import annotations

import asyncio
import hmac
from pathlib import Path
from uuid import UUID

from penstock import App, Forbidden, FunctionRequest, FunctionResponse, PageAction
from penstock.contract import artifacts
from penstock.postgres import db
from penstock.types import Artifact

SECRET = b"a secret of the tests"


def make_app() -> App:
    """The app, with nothing declared in the database yet."""
    app = App(
        schema="bookshelf",
        sql=Path(__file__).parent / "sql",
        writable_tables=["notes", "loans", "topics", "cards"],
        worker_functions={"next_page": None, "finish_page": "p_lease"},
    )
    _add_functions(app)
    _add_pages(app)
    app.upload("bookshelf:")(lend_file)
    return app


def _add_pages(app: App) -> None:
    back = PageAction(
        "return",
        "Return",
        "return_book",
        "p_loan_id",
        asks="Return {book}, which is {status}?",
        values={"p_reason": "dashboard"},
        when={"status": ["out"]},
    )
    app.page(
        "loans",
        "Loans",
        source="bookshelf.loan_list",
        columns={"book": "Book", "status": "Status", "tenant_id": "Tenant"},
        key="id",
        filters=["status", "book", "tenant_id"],
        actions=[back],
        links={"tenant_id": "/tenants/{}"},
        description="what members borrowed",
    )
    app.page("notes", "Notes", source="notes", columns=["title", "data", "score"], key="id", order="score")
    app.page("shelf", "Shelf", source="loans", columns=["book"], key="id")
    app.page(
        "files", "Files", source="file_list", columns=["name", "file_id"], key="file_id", files=["file_id"]
    )
    app.page("secrets", "Secrets", source="loans", columns=["secret"], key="id", is_for_operators=True)


def _add_functions(app: App) -> None:
    @app.function("my-notes", methods=["GET", "POST"])
    async def my_notes(request: FunctionRequest) -> FunctionResponse:
        """How many notes the caller has."""
        async with request.acting() as conn:
            [(count,)] = await db.rows(conn, "select bookshelf.count_notes()", ())
        return FunctionResponse(
            json={
                "count": count,
                "tenant": await request.tenant_id(),
                "user": request.user_id,
                "sent": request.json() if request.body else None,
                "query": dict(request.query),
            }
        )

    @app.function("hook", is_open=True, max_bytes=1000)
    async def hook(request: FunctionRequest) -> FunctionResponse:
        sent = request.headers.get("x-signature", "")
        good = hmac.new(SECRET, request.body, "sha256").hexdigest()
        if not hmac.compare_digest(sent, good):
            raise Forbidden("the signature does not match", code="invalid_signature")
        return FunctionResponse(202, body=request.body, headers={"Content-Type": "text/plain"})

    @app.function("broken")
    async def broken(request: FunctionRequest) -> FunctionResponse:
        raise RuntimeError(f"secret of {request.name}")

    @app.function("forbidden-write")
    async def forbidden_write(request: FunctionRequest) -> FunctionResponse:
        async with request.acting() as conn:
            await db.call(conn, "set_setting", p_name="maintenance", p_value=db.Json(True))
        return FunctionResponse(204)

    @app.function("slow", timeout=0.05)
    async def slow(request: FunctionRequest) -> FunctionResponse:
        await asyncio.Event().wait()
        return FunctionResponse(204)

    @app.function("add-file")
    async def add_file(request: FunctionRequest) -> FunctionResponse:
        """The upload is stored, kept and lent in one transaction."""
        is_new = await request.finish_upload(UUID(request.json()["id"]), lend_file)
        return FunctionResponse(201 if is_new else 200, json={"is_new": is_new})

    del my_notes, hook, broken, forbidden_write, slow, add_file


async def lend_file(conn: db.Connection, file: Artifact) -> None:
    """The app's own row for a stored upload."""
    statement = "insert into bookshelf.loans (tenant_id, book) values (%s, %s) returning id"
    [(loan,)] = await db.rows(conn, statement, (file.tenant_id, file.name))
    await artifacts.keep(conn, artifact_id=file.id, subject=f"bookshelf.loan:{loan}")
