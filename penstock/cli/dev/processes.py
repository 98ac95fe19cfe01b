"""The processes of `penstock dev`: the API, and the worker with a line for each task that it ends."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import socket
import sys
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from penstock.cli import output
from penstock.cli.options import Options, Output, using_options
from penstock.cli.run import log_to_stderr
from penstock.errors import PenstockError
from penstock.settings import Settings

if TYPE_CHECKING:
    from penstock.api.development import Development
    from penstock.sdk.app import App


def run_api(
    options: Options,
    settings: Settings,
    listening: socket.socket,
    path: str | None,
    developer: Development,
    ready: Connection,
) -> None:
    """Serve the API until the parent stops this process or ends."""
    from penstock import server
    from penstock.sdk.load import load

    with using_options(output=options.output, no_color=options.no_color):
        # The dashboard makes many requests, which would hide the lines of tasks.
        log_to_stderr(logging.WARNING)
        app = load(path) if path else None
        ready.send(True)
        server.run_beside(settings, listening, developer=developer, app=app)


def run_worker(
    options: Options, address: str, path: str, concurrency: int, url: str, ready: Connection
) -> None:
    """Run a worker until the parent stops this process or ends. Exits with the code of its error."""
    from penstock.sdk.load import load

    with using_options(output=options.output, no_color=options.no_color):
        # As text, tasks have lines of their own.
        log_to_stderr(logging.WARNING if options.output is Output.text else logging.INFO)
        try:
            is_clean = asyncio.run(_work(load(path), address, concurrency, url, ready))
        except PenstockError as error:
            output.print_error(error, is_json=options.output is not Output.text)
            sys.exit(error.exit_code)
        if not is_clean:
            # A handler's thread still runs, and a normal exit would wait for it forever.
            logging.shutdown()
            os._exit(0)


async def _work(app: App, address: str, concurrency: int, url: str, ready: Connection) -> bool:
    from penstock.cli.dev.lines import TaskLines, rerun_last
    from penstock.worker import Worker

    worker = Worker(app, dsn=address, concurrency=concurrency)
    lines = TaskLines(app, url)
    worker.on_attempt = lines.add
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, worker.stop)
    reruns: set[asyncio.Task[None]] = set()

    def rerun() -> None:
        task = asyncio.create_task(rerun_last(app))
        reruns.add(task)
        task.add_done_callback(reruns.discard)

    loop.add_signal_handler(signal.SIGUSR1, rerun)
    ready.send(True)
    if parent := multiprocessing.parent_process():
        loop.add_reader(parent.sentinel, lambda: loop.remove_reader(parent.sentinel) and worker.stop())
    printing = asyncio.create_task(lines.run())
    try:
        await worker.run()
    finally:
        printing.cancel()
        await asyncio.gather(printing, *reruns, return_exceptions=True)
        await lines.print_all()
        await app.aclose()
    return worker.is_clean
