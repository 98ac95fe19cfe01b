"""A proxy between clients and PostgreSQL that cuts, stalls and delays connections, and drops responses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal

Direction = Literal["up", "down"]


@dataclass(eq=False)
class Link:
    """One client's connection and the one behind it."""

    to_client: asyncio.StreamWriter
    to_server: asyncio.StreamWriter
    held: set[Direction] = field(default_factory=set[Direction])
    """Directions in which nothing passes."""
    is_answer_lost: bool = False

    def cut(self) -> None:
        """Both ends see the connection break."""
        for writer in (self.to_client, self.to_server):
            transport = writer.transport
            if not transport.is_closing():
                transport.abort()


class Proxy:
    """Listens on its own port and forwards to the server's."""

    def __init__(self, port: int) -> None:
        self.server_port = port
        self.links: list[Link] = []
        self.delay = 0.0
        """Seconds that each piece takes, in each direction."""
        self.drops: list[bytes] = []
        """Drop the response to the next message that contains one of these texts: committed, but the client does not know."""
        self.dropped: list[bytes] = []
        self._served: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[int]:
        """The port it listens on."""

        def serve(client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(self._serve(client, to_client))
            self._served.add(task)
            task.add_done_callback(self._served.discard)

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            self.cut_all()
            if self._served:
                await asyncio.wait(self._served, timeout=5)

    def cut_all(self) -> None:
        for link in list(self.links):
            link.cut()

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        try:
            server, to_server = await asyncio.open_connection("127.0.0.1", self.server_port)
        except OSError:
            to_client.transport.abort()
            return
        link = Link(to_client, to_server)
        self.links.append(link)
        ways = [
            asyncio.create_task(self._up(link, client)),
            asyncio.create_task(self._down(link, server)),
        ]
        try:
            # When one end is gone, so is the other: half a session is none.
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            self.links.remove(link)
            for writer in (to_client, to_server):
                writer.close()
                with suppress(ConnectionError, TimeoutError):
                    await writer.wait_closed()

    async def _up(self, link: Link, client: asyncio.StreamReader) -> None:
        with suppress(ConnectionError):
            while data := await client.read(65536):
                for words in self.drops:
                    if words in data:
                        self.drops.remove(words)
                        self.dropped.append(words)
                        link.is_answer_lost = True
                        break
                await self._pass_on(link, "up", data, link.to_server)

    async def _down(self, link: Link, server: asyncio.StreamReader) -> None:
        with suppress(ConnectionError):
            while data := await server.read(65536):
                if link.is_answer_lost:
                    # The server has done it by now, and said so to us only.
                    link.cut()
                    return
                await self._pass_on(link, "down", data, link.to_client)

    async def _pass_on(self, link: Link, way: Direction, data: bytes, writer: asyncio.StreamWriter) -> None:
        if self.delay:
            await asyncio.sleep(self.delay)
        while way in link.held:  # noqa: ASYNC110 what is held is seldom, and not for long
            await asyncio.sleep(0.05)
        writer.write(data)
        await writer.drain()
