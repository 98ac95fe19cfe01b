"""What telemetry adds to a request: `python -m bench.telemetry`.

Calls an HTTP server without a sink, with one, and with one that hangs, in turns; prints p50 and p99.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from penstock import simulator
from penstock.telemetry import Sender


def app(senders: dict[str, Sender | None]) -> Starlette:
    """A server whose handler sends an event to the sender that the request names."""

    async def answer(request: Request) -> JSONResponse:
        sender = senders[request.query_params["sink"]]
        if sender is not None:
            sender.send("called", "user", number=1, kind="bench")
        return JSONResponse({"ok": True})

    return Starlette(routes=[Route("/", answer)])


def percentiles(times: list[float]) -> str:
    """Median and p99 in milliseconds."""
    ordered = sorted(times)
    high = ordered[len(ordered) * 99 // 100]
    return f"p50 {statistics.median(ordered) * 1000:.3f} ms, p99 {high * 1000:.3f} ms"


async def measure(calls: int) -> dict[str, list[float]]:
    """The seconds of each call, by sink."""
    times: dict[str, list[float]] = {"none": [], "answers": [], "hangs": []}
    async with simulator.serve() as good, simulator.serve() as bad:
        bad.telemetry.control("hang")
        senders = {"none": None, "answers": Sender(good.url), "hangs": Sender(bad.url)}
        server = uvicorn.Server(uvicorn.Config(app(senders), port=0, log_level="error", lifespan="off"))
        running = asyncio.create_task(server.serve())
        while True:
            await asyncio.sleep(0.01)
            if server.started:
                break
        port = server.servers[0].sockets[0].getsockname()[1]
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            for n in range(calls + 100):
                for sink, seconds in times.items():
                    begin = time.perf_counter()
                    await client.get("/", params={"sink": sink})
                    if n >= 100:
                        seconds.append(time.perf_counter() - begin)
        server.should_exit = True
        await running
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=5000)
    arguments = parser.parse_args()
    for sink, times in asyncio.run(measure(arguments.calls)).items():
        print(f"sink {sink}: {percentiles(times)}")


if __name__ == "__main__":
    main()
