"""CPU-bound work in processes, tasks added by a running task, and a schedule.

python examples/thumbnails.py
"""

from __future__ import annotations

import asyncio
import zlib

from penstock import App, Context, Fail, Worker

app = App()


@app.task
async def scan(ctx: Context, folder: str, count: int) -> int:
    """Add one task per picture; they depend on this one, so they start when it has succeeded."""
    await ctx.aadd_tasks(
        [
            {"kind": "shrink", "key": f"shrink-{n}", "after": [ctx.key], "input": {"name": f"{folder}/{n}"}}
            for n in range(count)
        ]
    )
    return count


@app.task(cpu_bound=True, timeout="30s", max_attempts=2)
def shrink(name: str) -> dict[str, object]:
    """Run in a separate process: a crash or a hang costs an attempt, not the worker."""
    if name.endswith("/3"):
        raise Fail(f"{name} is not a picture", code="not_a_picture")
    picture = name.encode() * 100_000
    return {"name": name, "saved": len(picture) - len(zlib.compress(picture, 9))}


app.schedule(scan, "0 3 * * *", timezone="Europe/Berlin", params={"folder": "new", "count": 2})


def main() -> None:
    with app:
        job = scan.start("holidays", 5)
        asyncio.run(Worker(app, drain=True, concurrency=2).run())
        found = job.get()
        print(found.status, found.progress.succeeded, "of", found.progress.total, found.status_reason)


if __name__ == "__main__":
    main()
