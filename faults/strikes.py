"""Applies one fault of the schedule: to a process, to the connections, or to PostgreSQL itself."""

from __future__ import annotations

import asyncio
import random
import signal
from typing import TYPE_CHECKING

import psycopg

import penstock
from faults import history
from faults.schedule import LOST, Fault
from faults.slots import Slot

if TYPE_CHECKING:
    from faults.run import Run

STALL = 0.88
"""The length of a short stop, as a part of the lease."""


class Strikes:
    """The faults of a run."""

    def __init__(self, run: Run) -> None:
        self.run = run

    async def try_fault(self, fault: Fault) -> None:
        try:
            if await self._apply(fault):
                self.run.faults[fault.name] += 1
                self.run.history.note("fault", name=fault.name)
        except (OSError, psycopg.Error, penstock.PenstockError) as error:
            # Another fault was there first.
            self.run.history.note("missed", name=fault.name, error=str(error))

    def _pick(self, slots: list[Slot], roll: float) -> Slot | None:
        up = [slot for slot in slots if slot.is_up]
        return up[int(roll * len(up))] if up else None

    async def _apply(self, fault: Fault) -> bool:
        what, _, how = fault.name.partition(".")
        if what == "worker":
            # Little but a drain hands tasks back.
            returning = [
                slot for slot in self.run.workers if slot.armed == "return.sent" and how == "drained"
            ]
            # A worker that is stopped before it has reached PostgreSQL gives up, as it should after 30 s.
            is_stop = how in ("paused", "stalled")
            # Half of the workers go on: while all are stopped, no task can begin.
            if is_stop and sum(slot.is_up for slot in self.run.workers) <= len(self.run.workers) / 2:
                return False
            others = [slot for slot in self.run.workers if not is_stop or self.run.has_started(slot)]
            victim = self._pick(returning, fault.roll) or self._pick(others, fault.roll)
            return victim is not None and await self._hit(victim, how, fault.size)
        if what in ("producer", "api", "rpc"):
            apis = [slot for slot in (self.run.api, self.run.rpc_api) if slot]
            slots = {"producer": self.run.producers, "api": apis, "rpc": self.run.rpc_workers}[what]
            victim = self._pick(slots, fault.roll)
            return victim is not None and await self._hit(victim, "killed", fault.size)
        if what == "link":
            return await self._disturb(how, fault)
        async with self.run.server_lock:
            return await self._strike(what, how, fault)

    async def _hit(self, victim: Slot, how: str, size: float) -> bool:
        pid = victim.process.pid
        match how:
            case "killed":
                victim.why = "killed"
                victim.signal(signal.SIGKILL)
                is_rpc = victim is self.run.rpc_api or victim in self.run.rpc_workers
                told = self.run.rpc.history if self.run.rpc and is_rpc else self.run.history
                told.note(
                    "killed", victim=pid, by="api" if victim in (self.run.api, self.run.rpc_api) else "us"
                )
            case "drained":
                victim.why = "drained"
                victim.signal(signal.SIGTERM)
                victim.drained_at = history.now()
            case "paused" | "stalled":
                seconds = self.run.lease_seconds * (1.2 + 0.8 * size if how == "paused" else STALL)
                victim.is_paused = True
                victim.signal(signal.SIGSTOP)
                self.run.history.note("stopped", victim=pid, seconds=seconds, is_short=how == "stalled")
                await asyncio.sleep(seconds)
                victim.signal(signal.SIGCONT)
                victim.is_paused = False
            case _:
                victim.signal(signal.SIGUSR1)
        return True

    async def _disturb(self, how: str, fault: Fault) -> bool:
        links = self.run.proxy.links
        some = random.Random(fault.roll).sample(links, min(len(links), 1 + int(fault.size * 5)))
        match how:
            case "cut":
                for link in some:
                    link.cut()
            case "half":
                for link in some:
                    link.held.add("up" if fault.roll < 0.5 else "down")
                await asyncio.sleep(2 + fault.size * 10)
                for link in some:
                    link.cut()
            case "slow":
                self.run.proxy.delay = 0.01 + 0.2 * fault.roll
                await asyncio.sleep(1 + fault.size * 4)
                self.run.proxy.delay = 0
            case _:
                self.run.proxy.drops.append(LOST[int(fault.roll * len(LOST))])
        return True

    async def _strike(self, what: str, how: str, fault: Fault) -> bool:
        """At PostgreSQL itself, one at a time."""
        postgres = self.run.postgres
        self.run.history.note("strike", name=fault.name)
        if what == "backend" and how != "killed":
            verb = "pg_terminate_backend" if how == "ended" else "pg_cancel_backend"
            query = f"""select {verb}(pid) from (select pid from pg_stat_activity where application_name like 'penstock%%'
                and pid <> pg_backend_pid() and (%s or state = 'active') order by random() limit %s) as x"""
            await asyncio.to_thread(postgres.execute, query, (how == "ended", 1 + int(fault.size * 6)))
            return True
        down_at = history.now()
        match what, how:
            case "postgres", "killed":
                await asyncio.to_thread(postgres.kill)
            case "postgres", _:
                await asyncio.to_thread(postgres.stop_immediately)
            case "backend", _:
                await asyncio.to_thread(postgres.kill_backend)
                await asyncio.sleep(0.2)
            case _:
                assert self.run.disk
                await asyncio.to_thread(self.run.disk.fill)
                await asyncio.sleep(2 + fault.size * 4)
                self.run.disk.free()
        await asyncio.to_thread(postgres.start)
        self.run.history.note("outage", down_at=down_at, up_at=history.now(), why=f"{what}.{how}")
        if self.run.warm and what != "disk":
            self.run.feed(self.run.feed_warm("warm", "warm up"))
        return True
