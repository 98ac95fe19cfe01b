"""How long a prompt takes while the database is down, and after it is back: `python -m bench.prompts`.

Cuts the connections of an app to PostgreSQL (away), or lets them hang, and brings the database back.
"""

from __future__ import annotations

import asyncio
import socket
import time
from urllib.parse import urlsplit, urlunsplit

from bench import server
from faults.proxy import Proxy
from penstock import App
from penstock.contract import prompts
from penstock.postgres import migrate
from penstock.sdk.prompts import FRESH_SECONDS, DeclaredPrompt


async def measure(dsn: str, port: int, how: str) -> None:
    """One outage."""
    proxy = Proxy(port)
    async with proxy.listening() as own_port:
        parts = urlsplit(dsn)
        address = parts._replace(netloc=parts.netloc.replace(f":{port}", f":{own_port}"))
        offset = 0.0
        async with App(database_url=urlunsplit(address)) as app:
            app.prompts.clock = lambda: time.monotonic() + offset
            prompt = app.prompt("summary", "constant")
            async with app.connections() as pool:
                await prompts.add(pool, name="summary", body="stored", activate=True)
            before = await prompt.aget()
            with socket.create_server(("127.0.0.1", 0)) as silent:
                if how == "hangs":
                    proxy.server_port = silent.getsockname()[1]
                    for link in proxy.links:
                        link.held = {"up", "down"}
                else:
                    proxy.server_port = 1
                    proxy.cut_all()
                offset = 2.0 * FRESH_SECONDS
                slowest, flagged = await _outage(prompt)
                proxy.server_port = port
                proxy.cut_all()
                seconds = await _recovery(prompt, before.version)
    print(
        f"database {how}: slowest prompt {slowest:.2f} s, {flagged} of 100 flagged as version 0; "
        f"version {before.version} again after {seconds:.1f} s"
    )


async def _outage(prompt: DeclaredPrompt) -> tuple[float, int]:
    slowest, flagged = 0.0, 0
    for _ in range(100):
        begin = time.perf_counter()
        found = await prompt.aget()
        slowest = max(slowest, time.perf_counter() - begin)
        flagged += found.is_fallback and found.version == 0
    return slowest, flagged


async def _recovery(prompt: DeclaredPrompt, version: int) -> float:
    begin = time.perf_counter()
    while True:
        if (await prompt.aget()).version == version:
            return time.perf_counter() - begin
        if time.perf_counter() - begin > 60:
            raise TimeoutError("the version did not come back")
        await asyncio.sleep(0.05)


def main() -> None:
    with server.postgres() as running:
        for how in ("away", "hangs"):
            dsn = running.create_database(f"prompts_{how}", tcp=True)
            migrate.migrate(dsn)
            asyncio.run(measure(dsn, running.port, how))


if __name__ == "__main__":
    main()
