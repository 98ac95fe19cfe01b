"""The simulator as an HTTP server on this machine."""

from __future__ import annotations

import asyncio
import io
import ipaddress
import json
import math
import socket
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import uvicorn
from starlette.datastructures import Headers, QueryParams
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from penstock.errors import Invalid, PenstockError
from penstock.simulator import cloudconvert as converter
from penstock.simulator import media, tokens
from penstock.simulator.anthropic import count_tokens
from penstock.simulator.cloudconvert_config import CloudConvertConfig
from penstock.simulator.config import FAULTS, PROVIDERS, Fault, Outcome, read
from penstock.simulator.limits import HOUR, Account, Amount, Limits
from penstock.simulator.posthog import PATHS as SINK_PATHS
from penstock.simulator.provider import Problem, Provider, ProviderRequest, Reply, document
from penstock.simulator.sheets import API, SheetsConfig
from penstock.simulator.shield import PATH as SHIELD_PATH
from penstock.simulator.shield import ShieldConfig
from penstock.simulator.simulator import Clock, Simulator, Slot
from penstock.simulator.stripe import PATHS as STRIPE_PATHS
from penstock.simulator.subscriptions import StripeError

MOST_BYTES = 32 * 1024 * 1024
"""Maximum size of a body; larger ones get status 413."""

_OPENAI, _ANTHROPIC = PROVIDERS[:2]
_POSTS = {path: provider for provider in PROVIDERS for path in provider.endpoints}
_COUNT_TOKENS, _MODELS, _CONTROL = "/v1/messages/count_tokens", "/v1/models", "/_simulator/"
_TIMEOUT_SECONDS = 600.0  # how long a request with the fault `timeout` stays open
_FASTEST = 100_000


class _Gone(Exception):
    """The client has closed the connection."""


@asynccontextmanager
async def serve(
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    limits: Limits | Mapping[str, Limits | Mapping[str, int]] | None = None,
    faults: Mapping[Fault, float] | None = None,
    answers: Mapping[Outcome, float] | None = None,
    reasoning_tokens: int = 0,
    video_seconds: float = 0,
    latency: tuple[float, float] = (0, 0),
    quota_exhausted_after: int | None = None,
    sheets: SheetsConfig | Mapping[str, Any] | None = None,
    cloudconvert: CloudConvertConfig | Mapping[str, Any] | None = None,
    shield: ShieldConfig | Mapping[str, Any] | None = None,
    seed: int = 0,
    speed: float = 1,
    clock: Clock | None = None,
) -> AsyncGenerator[Simulator]:
    """Run a simulator in this event loop during the block. Port 0 picks a free port.

    `limits`: for all models, or by `provider/model`, `provider` or `default`. `answers`: the share that
    models refuse, filter or cut off; `reasoning_tokens`: how long they think before each answer. `sheets`:
    configuration of the Sheets server, `cloudconvert` of CloudConvert, `shield` of the prompt shield.
    `clock`: returns the time in seconds, for tests.
    """
    if not 0 < speed <= _FASTEST:
        raise Invalid(f"speed must be more than 0 and at most {_FASTEST:,} (got {speed:g})")
    config = read(
        {
            "limits": limits,
            "faults": faults or {},
            "answers": answers or {},
            **{"reasoning_tokens": reasoning_tokens, "video_seconds": video_seconds},
            "latency": latency,
            "quota_exhausted_after": quota_exhausted_after,
            **{"sheets": sheets or {}, "cloudconvert": cloudconvert or {}, "shield": shield or {}},
        }
    )
    simulator = Simulator(config, seed=seed, speed=speed, clock=clock)
    listener = _listen(host, port)
    simulator.url = _url(*listener.getsockname()[:2])
    app = _Server(simulator)
    server = _uvicorn(app)
    # Not server.serve(), which installs signal handlers and polls for its end.
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    await server.startup(sockets=[listener])
    try:
        yield simulator
    finally:
        app.closing.set()
        await simulator.cloudconvert.aclose()
        await simulator.media.aclose()
        await server.shutdown(sockets=[listener])


def _uvicorn(app: _Server) -> uvicorn.Server:
    return uvicorn.Server(
        uvicorn.Config(
            app,
            lifespan="off",
            ws="none",
            log_config=None,
            log_level="error",
            access_log=False,
            proxy_headers=False,
            # Closing a connection while the client sends would look like a fault.
            timeout_keep_alive=3600,
            timeout_graceful_shutdown=5,
        )
    )


def _url(address: str, port: int) -> str:
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


def _listen(host: str, port: int) -> socket.socket:
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        address = None
    if address is None or not address.is_loopback:
        raise Invalid(
            f"the simulator listens on loopback addresses only (got {host!r})",
            hint="Use 127.0.0.1 or ::1.",
        )
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    # Name the protocol, so that asyncio recognizes TCP and disables Nagle's delay of 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((str(address), port))
        return listener
    except (OSError, OverflowError) as error:
        listener.close()
        raise PenstockError(f"cannot listen on {address}, port {port}: {error}") from error


class _Server:
    """The ASGI application."""

    def __init__(self, simulator: Simulator) -> None:
        self.simulator = simulator
        self.closing = asyncio.Event()
        self._number = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._number += 1
        exchange = _Exchange(self, self._number, scope, receive, send)
        with suppress(_Gone):
            if exchange.path.startswith(_CONTROL):
                await exchange.control()
            elif exchange.path == tokens.PATH or exchange.path.startswith(API):
                await exchange.keep_sheets()
            elif exchange.path.startswith(converter.API):
                await exchange.convert()
            elif exchange.path == SHIELD_PATH:
                await exchange.screen()
            elif exchange.path in SINK_PATHS:
                await exchange.collect()
            elif STRIPE_PATHS.match(exchange.path):
                await exchange.bill()
            elif media.PATHS.fullmatch(exchange.path):
                await exchange.make_media()
            else:
                await exchange.provide()


class _Exchange:
    """One request and its response."""

    def __init__(self, server: _Server, number: int, scope: Scope, receive: Receive, send: Send) -> None:
        self.simulator, self.closing = server.simulator, server.closing
        self.number = number
        self.scope, self.receive, self.send = scope, receive, send
        self.headers = Headers(scope=scope)
        self.method: str = scope["method"]
        self.path: str = scope["path"]

    async def _answer(self, response: Response) -> None:
        await response(self.scope, self.receive, self.send)

    async def _body(self) -> bytes | None:
        """The whole body, or None if it is too large."""
        parts, size, more = list[bytes](), 0, True
        while more:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise _Gone
            part = message.get("body", b"")
            size += len(part)
            if size <= MOST_BYTES:
                # Read the rest anyway, because a client that is still sending does not read the response.
                parts.append(part)
            more = message.get("more_body", False)
        return b"".join(parts) if size <= MOST_BYTES else None

    # Providers

    async def provide(self) -> None:
        """Answer as a provider."""
        simulator = self.simulator
        body = await self._body()
        simulator.requests += 1
        provider = _POSTS.get(self.path) or (_ANTHROPIC if self._is_anthropic() else _OPENAI)
        account = slot = None
        try:
            key = provider.key(self.headers)
            reply = self._reply(provider, body)
            if isinstance(reply, dict):
                return await self._say(provider, 200, _json(reply))
            simulator.expect(provider, reply.model)
            if self.path == _COUNT_TOKENS:
                response = Response(reply.parts[0], media_type="application/json")
                return await self._say(provider, 200, response)
            account = simulator.account(provider, reply.model, key)
            slot = simulator.admit(account, reply, key)
            await self._work(provider, account, slot, reply)
        except Problem as problem:
            if slot is not None:
                slot.end()  # before the client gets the response
            await self._send_error(provider, problem, account)
        finally:
            if slot is not None:
                slot.end()

    def _is_anthropic(self) -> bool:
        return self.path == _COUNT_TOKENS or "anthropic-version" in self.headers

    def _reply(self, provider: Provider, body: bytes | None) -> Reply | dict[str, Any]:
        is_listing, is_counting = self.path == _MODELS, self.path == _COUNT_TOKENS
        endpoint = count_tokens if is_counting else provider.endpoints.get(self.path)
        if endpoint is None and not is_listing:
            raise Problem("no_path", f"{self.method} {self.path}")
        if self.method != ("GET" if is_listing else "POST"):
            raise Problem("no_method", f"{self.method} {self.path}")
        if endpoint is None:
            return provider.listing(self.simulator.models(provider))
        if body is None:
            raise Problem("too_large", f"Request exceeds the maximum size of {MOST_BYTES} bytes.")
        fields = _fields(body)
        if fields is None:
            raise Problem(
                "invalid", "We could not parse the JSON body of your request: it must be an object."
            )
        simulator = self.simulator
        now, behavior = simulator.clock(), simulator.behavior()
        return endpoint(ProviderRequest(fields, simulator.seed, self.number, now, behavior))

    async def _work(self, provider: Provider, account: Account, slot: Slot, reply: Reply) -> None:
        headers = provider.limit_headers(account, self.simulator.clock())
        fault = self.simulator.fault()
        if fault == "timeout":
            # The provider did the work, but the client never gets the response.
            await self._wait_for_disconnect()
        if fault is not None:
            slot.used = slot.used if fault == "timeout" else Amount.of(0, 0)
            raise Problem(FAULTS[fault], model=reply.model)
        latency = self.simulator.latency()
        if reply.is_stream:
            stream = self._stream(slot, reply.parts, latency)
            response = StreamingResponse(stream, media_type="text/event-stream")
        else:
            await self._sleep(latency)
            slot.end()
            response = Response(reply.parts[0], media_type=reply.media_type)
        response.headers.update(headers)
        await self._say(provider, 200, response)

    async def _stream(self, slot: Slot, parts: list[bytes], latency: float) -> AsyncGenerator[bytes]:
        for part in parts[:-1]:
            await self._sleep(latency / len(parts))
            yield part
        await self._sleep(latency / len(parts))
        # Before the client gets the end: its next request may arrive at once and needs the slot.
        slot.end()
        yield parts[-1]

    async def _sleep(self, seconds: float) -> None:
        if seconds > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds / self.simulator.speed):
                    await self.closing.wait()

    async def _wait_for_disconnect(self) -> None:
        leaving = asyncio.ensure_future(self._left())
        waiting = asyncio.ensure_future(self._sleep(_TIMEOUT_SECONDS))
        try:
            await asyncio.wait([leaving, waiting], return_when=asyncio.FIRST_COMPLETED)
            if leaving.done():
                raise _Gone
        finally:
            for task in (leaving, waiting):
                task.cancel()

    async def _left(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass

    async def _send_error(self, provider: Provider, problem: Problem, account: Account | None) -> None:
        status, error = provider.error(problem, self._request_id)
        response = _json(error, status)
        if problem.reason == "rate" and account is not None:
            response.headers.update(provider.limit_headers(account, self.simulator.clock()))
            wait = problem.rejection.wait if problem.rejection else 1.0
            if math.isfinite(wait) and provider.sends_retry_after:
                response.headers["retry-after"] = str(math.ceil(wait))
                response.headers["retry-after-ms"] = str(math.ceil(wait * 1000))
        await self._say(provider, status, response)

    @property
    def _request_id(self) -> str:
        return f"req_{self.number:08d}"

    async def _say(self, provider: Provider, status: int, response: Response) -> None:
        self.simulator.statuses[str(status)] += 1
        response.headers[provider.request_id] = self._request_id
        await self._answer(response)

    # Sheets

    async def keep_sheets(self) -> None:
        """Answer as Google Sheets."""
        body = await self._body()
        query = QueryParams(self.scope["query_string"]).multi_items()
        answer = self.simulator.sheets.respond(self.method, self.path, query, self.headers, body)
        await self._sleep(answer.seconds)
        await self._answer(_json(answer.document, answer.status))

    # CloudConvert

    async def convert(self) -> None:
        """Answer as CloudConvert."""
        body = await self._body()
        query = QueryParams(self.scope["query_string"]).multi_items()
        answer = await self.simulator.cloudconvert.respond(self.method, self.path, query, self.headers, body)
        if answer.is_lost:
            await self._wait_for_disconnect()
        if answer.body is None:
            response = _json(answer.document, answer.status)
        else:
            response = Response(answer.body, answer.status, media_type=answer.media_type)
        response.headers.update(answer.headers)
        await self._answer(response)

    # Prompt shield

    async def screen(self) -> None:
        """Answer as Azure's prompt shield."""
        body = await self._body()
        query = QueryParams(self.scope["query_string"])
        status, found = self.simulator.shield.respond(self.method, query, self.headers, body)
        if self.simulator.config.shield.is_hanging:
            await self._wait_for_disconnect()
        await self._answer(_json(found, status))

    # Speech, videos

    async def make_media(self) -> None:
        """Answer as ElevenLabs, Replicate or Runway."""
        body = await self._body()
        query = dict(QueryParams(self.scope["query_string"]))
        await self._sleep(self.simulator.latency())
        answer = self.simulator.media.respond(self.method, self.path, query, self.headers, body)
        if answer.body is None:
            response = _json(answer.document, answer.status)
        else:
            response = Response(answer.body, answer.status, media_type=answer.media_type)
        response.headers.update(answer.headers)
        await self._answer(response)

    # Stripe

    async def bill(self) -> None:
        """Answer as Stripe."""
        body = await self._body()
        query = QueryParams(self.scope["query_string"]).multi_items()
        answer = self.simulator.stripe.respond(self.method, self.path, query, self.headers, body)
        response = _json(answer.document, answer.status)
        response.headers.update(answer.headers)
        await self._answer(response)

    # Telemetry

    async def collect(self) -> None:
        """Answer as a telemetry server."""
        sink = self.simulator.telemetry
        status, document = sink.take(await self._body())
        if sink.behavior == "hang":
            await self._wait_for_disconnect()
        if sink.behavior == "slow":
            await self._sleep(sink.slow_seconds)
        await self._answer(_json(document, status))

    # Control

    async def control(self) -> None:
        """Stats, config and reset."""
        body = await self._body()
        try:
            await self._answer(self._controlled(body or b""))
        except Invalid as error:
            await self._answer(_json({"error": {"message": error.message}}, error.status))
        except StripeError as error:
            await self._answer(_json(error.document, error.status))

    def _controlled(self, body: bytes) -> Response:
        match self.method, self.path.removeprefix(_CONTROL):
            case "GET", "stats":
                return _json(self.simulator.stats(self._seconds()))
            case "GET", "config":
                return _json(self.simulator.config.model_dump())
            case "POST", "config":
                fields = _fields(body)
                if fields is None:
                    raise Invalid("the body must be a JSON object")
                return _json(self.simulator.configure(**fields).model_dump())
            case "POST", "service-account":
                return _json(self.simulator.sheets.service_account())
            case "GET", path if path.startswith("sheets/"):
                return self._sheet(path.removeprefix("sheets/"))
            case "POST", path if path.startswith("sheets/"):
                id = path.removeprefix("sheets/")
                self.simulator.sheets.load(id, io.StringIO(body.decode("utf-8-sig"), newline=""))
                return self._sheet(id)
            case "POST", path if path.startswith("stripe/"):
                fields = _fields(body or b"{}")
                if fields is None:
                    raise Invalid("the body must be a JSON object")
                return _json(self.simulator.stripe.control(path.removeprefix("stripe/"), fields))
            case "POST", path if path.startswith("telemetry/"):
                return _json(self.simulator.telemetry.control(path.removeprefix("telemetry/")))
            case "POST", "reset":
                self.simulator.reset()
                return _json(self.simulator.stats())
            case _:
                message = f"{self.method} {self.path} not found"
                return _json({"error": {"message": message}}, 404)

    def _sheet(self, id: str) -> Response:
        if id not in self.simulator.sheets.spreadsheets:
            return _json({"error": {"message": f"spreadsheet {id} not found"}}, 404)
        wanted = QueryParams(self.scope["query_string"]).get("range", "A:ZZ")
        return _json({"id": id, "values": self.simulator.sheets.values(id, wanted)})

    def _seconds(self) -> float | None:
        given = QueryParams(self.scope["query_string"]).get("seconds")
        if given is None:
            return None
        with suppress(ValueError):
            if 0 < (seconds := float(given)) <= HOUR:
                return seconds
        raise Invalid(f"seconds must be a number between 0 and {HOUR:.0f} (got {given!r})")


def _json(value: object, status: int = 200) -> Response:
    # Not Starlette's JSONResponse, which cannot encode lone surrogates.
    return Response(document(value), status, media_type="application/json")


def _fields(body: bytes) -> dict[str, Any] | None:
    """The JSON object in a body, if it is one."""
    try:
        value = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def _no_constant(name: str) -> None:
    # Python's parser accepts NaN and Infinity, which are not JSON.
    raise ValueError(name)
