"""An app with a bulk type, for tests of bulk jobs."""

from __future__ import annotations

from typing import Any

import pydantic

from penstock import App, BulkRow, Change


class Idea(pydantic.BaseModel):
    title: str
    seconds: int = pydantic.Field(5, ge=1)


def make(dsn: str, tenant: Any) -> App:
    app = App(database_url=dsn, tenant=tenant)

    @app.task(max_attempts=1)
    async def write(title: str) -> str:
        if title.startswith("bad"):
            raise ValueError(f"no words for {title}")
        return title.upper()

    @app.task
    async def render(text: str, seconds: int) -> dict[str, Any]:
        return {"url": f"/{text}.mp4", "seconds": seconds}

    @app.bulk(row=Idea, key=["title"])
    def films(row: Idea) -> Any:
        return render.step(write.step(row.title), row.seconds)

    @films.apply
    async def apply(ctx: Any, connection: Any, row: BulkRow[Idea], result: Any) -> list[Change]:
        return [Change(name="url", after=result["url"])]

    @films.undo
    async def undo(ctx: Any, connection: Any, row: BulkRow[Idea], change: Change) -> None:
        pass

    return app


# More rows than a preview runs: the last ones wait for confirmation.
ROWS = "title,seconds\notters,5\nherons,3\nbad one,2\nmayflies,none\n=1+1,4\nswans,2\nfrogs,2\nnewts,1\n"
