"""Actors on a Ray cluster for handlers that need its machines: each runs one call at a time.

Ray never retries a call, and actors report nothing: the worker holds the lease and reports. A lost actor or
node is a failed attempt, which the database retries.
"""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Callable
from typing import Any

import structlog

from penstock.extras import required
from penstock.sdk.context import Fail, Reschedule
from penstock.sdk.engines import RayResources
from penstock.worker import outcome
from penstock.worker.processes import START_SECONDS, Arguments, respond

# A cluster that scales up needs minutes. After this time the task is requeued and its slot is free.
PLACEMENT_SECONDS = 300.0
RETRY_SECONDS = 15.0
# An idle actor keeps its imports, such as a loaded model, but also its share of the cluster.
IDLE_SECONDS = 30.0
log = structlog.get_logger("penstock.worker")


class _Runner:
    """Runs in the cluster. Holds no lease and no credentials."""

    def ready(self) -> None:
        """Respond once the actor has started."""

    def run(self, module: str, name: str, arguments: Arguments | None) -> tuple[Any, ...]:
        return respond(module, name, arguments)


class RayActors:
    """Starts and reuses actors on the Ray cluster that this machine belongs to, or that RAY_ADDRESS names."""

    def __init__(self) -> None:
        self._ray: Any = None
        self._connecting = asyncio.Lock()
        self._idle: list[_Actor] = []
        self._busy: set[_Actor] = set()
        self._leaving: asyncio.Task[None] | None = None

    async def call(
        self, function: Callable[..., Any], arguments: Arguments, limit: float | None, resources: RayResources
    ) -> Any:
        """Run a function in an actor. Canceling this kills the actor.

        The limit applies to the handler only, not to the wait for a node with free resources.
        """
        ray = await self._connected()
        actor = self._take(ray, resources)
        self._busy.add(actor)
        name = (function.__module__, function.__qualname__)
        try:
            await self._place(ray, actor, resources)
            if name not in actor.known:
                async with outcome.limited(START_SECONDS):
                    await _get(ray, actor.handle.run, *name, None)
                actor.known.add(name)
            async with outcome.limited(limit):
                status, *rest = await _get(ray, actor.handle.run, *name, arguments)
        except BaseException:
            self._kill(ray, actor)
            raise
        finally:
            self._busy.discard(actor)
        self._keep(ray, actor)
        if status in ("result", "ready"):
            return rest[0]
        raise Reschedule(*rest) if status == "reschedule" else outcome.HandlerFailed(rest[0])

    async def _connected(self) -> Any:
        async with self._connecting:
            if self._ray is None:
                try:
                    # In a thread: connecting takes seconds, and Ray would replace the main thread's signals.
                    self._ray = await asyncio.to_thread(_connect)
                except ConnectionError as error:
                    log.warning("ray.not_reached", error=str(error))
                    raise Reschedule(RETRY_SECONDS, "no Ray cluster is reachable") from error
        return self._ray

    def _take(self, ray: Any, resources: RayResources) -> _Actor:
        """An idle actor with these resources, or a new one."""
        key = json.dumps(resources, sort_keys=True)
        found = next((actor for actor in reversed(self._idle) if actor.key == key), None)
        if found is not None:
            self._idle.remove(found)
            return found
        # Idle actors must not hold the resources that the new one waits for.
        for other in self._idle:
            self._kill(ray, other)
        self._idle.clear()
        options: dict[str, Any] = {"num_cpus": 1, **resources, "max_restarts": 0, "max_task_retries": 0}
        return _Actor(key, ray.remote(_Runner).options(**options).remote())

    async def _place(self, ray: Any, actor: _Actor, resources: RayResources) -> None:
        if actor.is_placed:
            return
        try:
            async with outcome.limited(PLACEMENT_SECONDS):
                await _get(ray, actor.handle.ready)
        except outcome.TimedOutHandler:
            wanted = ", ".join(f"{name}={value}" for name, value in resources.items()) or "num_cpus=1"
            raise Reschedule(RETRY_SECONDS, f"no Ray node has {wanted} free") from None
        actor.is_placed = True

    def _keep(self, ray: Any, actor: _Actor) -> None:
        self._idle.append(actor)
        actor.uses = uses = actor.uses + 1

        def expire() -> None:
            if actor.uses == uses and actor in self._idle:
                self._idle.remove(actor)
                self._kill(ray, actor)
                self._leaving = asyncio.create_task(self._leave_if_idle(), name="leave ray")

        asyncio.get_running_loop().call_later(IDLE_SECONDS, expire)

    async def _leave_if_idle(self) -> None:
        """Leave the cluster: if its head dies, Ray ends every process that is still connected."""
        async with self._connecting:
            if self._ray is not None and not self._busy and not self._idle:
                ray, self._ray = self._ray, None
                await asyncio.to_thread(ray.shutdown)

    def _kill(self, ray: Any, actor: _Actor) -> None:
        try:
            ray.kill(actor.handle)
        except Exception as error:
            # The actor dies with this driver if the cluster cannot be reached now.
            log.warning("ray.actor_not_killed", error=str(error))

    def close(self) -> None:
        """Kill all actors and leave the cluster."""
        if self._ray is not None:
            for actor in (*self._busy, *self._idle):
                self._kill(self._ray, actor)
            self._idle.clear()
            self._ray.shutdown()
            self._ray = None


class _Actor:
    """An actor and what it was started with."""

    def __init__(self, key: str, handle: Any) -> None:
        self.key, self.handle = key, handle
        self.is_placed, self.uses = False, 0
        self.known: set[tuple[str, str]] = set()
        """The functions it has imported, by module and name."""


def _connect() -> Any:
    with required():
        ray = importlib.import_module("ray")
    # "auto" is RAY_ADDRESS or the cluster of this machine; it never starts one.
    ray.init(address="auto", namespace="penstock", log_to_driver=False, ignore_reinit_error=True)
    return ray


async def _get(ray: Any, method: Any, *arguments: Any) -> Any:
    """Call an actor's method. Anything that Ray raises itself means that the attempt is lost."""
    try:
        reference = method.remote(*arguments)
    except TypeError as error:
        raise Fail(f"the input cannot be sent to Ray: {error}", code="bad_input") from error
    try:
        return await reference
    except ray.exceptions.RayTaskError as error:
        # `respond` catches what the handler raises, so Ray failed to pickle the result.
        raise Fail(f"the result cannot be sent back from Ray: {error.cause}", code="bad_output") from error
    except ray.exceptions.RayError as error:
        first = str(error).partition("\n")[0]
        raise outcome.ProcessDied(f"the Ray actor died: {type(error).__name__}: {first}"[:500]) from None
