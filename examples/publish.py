"""A job with a task graph: each document is written, then typeset; when all are typeset, they are bound.

    python examples/publish.py            # starts the job, runs a worker until it ends, prints the result

The job runs in the database of DATABASE_URL, or in an embedded PostgreSQL under .penstock/.
To run separate workers: `penstock worker examples.publish:app`.
"""

from __future__ import annotations

import asyncio

from pydantic import BaseModel

from penstock import App, Context, Retry, Worker

app = App()


class Pages(BaseModel):
    title: str
    pages: int


@app.task(max_attempts=5, backoff="1s", timeout="2m")
async def write(ctx: Context, title: str) -> str:
    """Simulate a slow provider that rejects the first call."""
    if ctx.attempt == 1 and title == "herons":
        raise Retry("busy", code="provider_busy")
    for part in range(1, 4):
        await asyncio.sleep(0.01)
        ctx.progress(part, of=3, message=f"writing {title}")
    return f"All about {title}. " * 50


@app.task
def typeset(title: str, text: str) -> Pages:
    return Pages(title=title, pages=1 + len(text) // 500)


@app.task
def bind(chapters: list[Pages]) -> int:
    return sum(chapter.pages for chapter in chapters)


@app.job(phases={"write": 70, "typeset": 20, "bind": 10})
def book(titles: list[str]) -> dict[str, object]:
    chapters = [typeset.step(title, write.step(title)) for title in titles]
    return {"chapters": chapters, "pages": bind.step(chapters)}


async def main() -> None:
    async with app:
        job = await book.options(idempotency_key="river-animals").astart(["otters", "herons"])
        worker = Worker(app)
        working = asyncio.create_task(worker.run())
        print(await job.aresult(timeout="1m"))
        worker.stop()
        await working


if __name__ == "__main__":
    asyncio.run(main())
