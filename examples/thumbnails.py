"""CPU-bound work in processes, children added by a running task, and a job by the clock.

python examples/thumbnails.py
"""

from __future__ import annotations

import asyncio
import zlib

from penstock import App, Context, Fail, Worker

app = App()


@app.task
async def scan(ctx: Context, folder: str, count: int) -> int:
    """Finds out how much there is to do, and adds a task for each; they come after this one."""
    await ctx.aadd_tasks(
        [
            {"kind": "shrink", "key": f"shrink-{n}", "after": [ctx.key], "input": {"name": f"{folder}/{n}"}}
            for n in range(count)
        ]
    )
    return count


@app.task(cpu_bound=True, timeout="30s", max_attempts=2)
def shrink(name: str) -> dict[str, object]:
    """Runs in a process of its own: a crash or a hang costs an attempt and not the worker."""
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
