"""Sender: delivers queued notifications. Every worker and server runs one; the database shares the work."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import structlog

from penstock.contract import notifications
from penstock.delivery import webhook
from penstock.delivery.outcome import Outcome
from penstock.errors import PenstockError
from penstock.postgres import db
from penstock.settings import Settings
from penstock.types import TakenNotification

log = structlog.get_logger("penstock.delivery")


class Sender:
    """Takes due notifications and delivers them, when told so and every half minute."""

    PAUSE = 30.0
    PAUSE_AFTER_ERROR = 5.0
    BATCH: int = 20
    """Messages taken at once."""
    MAX_IN_FLIGHT: int = 100

    def __init__(self, pool: db.Pool, settings: Settings) -> None:
        self._pool, self._settings = pool, settings
        self._sending: set[asyncio.Task[None]] = set()
        self.due = asyncio.Event()
        """Set it when there may be notifications to deliver."""

    async def run(self) -> None:
        pause = random.uniform(0, self.PAUSE)
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self.due.wait()
                self.due.clear()
                try:
                    while await self._begin():
                        pass
                    pause = self.PAUSE * random.uniform(0.8, 1.2)
                except Exception as error:
                    log.warning("delivery.failed", error=str(error))
                    pause = self.PAUSE_AFTER_ERROR
        finally:
            for task in self._sending:
                task.cancel()
            await asyncio.gather(*self._sending, return_exceptions=True)

    async def once(self) -> bool:
        """Deliver one batch, all messages at once. Returns whether there may be more."""
        is_full = await self._begin()
        await asyncio.gather(*self._sending)
        return is_full

    async def _begin(self) -> bool:
        """Take a batch and begin to deliver it: a receiver that does not answer delays no other message.

        Returns whether there may be more.
        """
        while len(self._sending) > self.MAX_IN_FLIGHT - self.BATCH:
            await asyncio.wait(self._sending, return_when=asyncio.FIRST_COMPLETED)
        taken = await notifications.take(self._pool, limit=self.BATCH)
        for notification in taken:
            task = asyncio.create_task(self._deliver(notification))
            self._sending.add(task)
            task.add_done_callback(self._ended)
        return len(taken) == self.BATCH

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        # A tenant has a share of what is in flight: now there is room for its next message.
        self.due.set()

    async def _deliver(self, notification: TakenNotification) -> None:
        try:
            outcome = await self._send(notification)
        except Exception as error:
            # One message that cannot be sent must not stop the others.
            log.exception("delivery.error", notification_id=str(notification.id))
            outcome = Outcome("retry", f"the message could not be sent: {type(error).__name__}")
        try:
            await notifications.end(
                self._pool, notification=notification, outcome=outcome.result, error=outcome.error
            )
        except PenstockError as error:
            # Another sender gets the message when its time is over.
            log.warning("delivery.not_reported", notification_id=str(notification.id), error=str(error))
            return
        log.info(
            "delivery.done",
            notification_id=str(notification.id),
            channel=notification.channel,
            result=outcome.result,
            error=outcome.error,
        )

    async def _send(self, notification: TakenNotification) -> Outcome:
        if notification.channel == "webhook":
            return await webhook.send(notification, allow_private=self._settings.allow_private_webhooks)
        if self._settings.smtp_url is None:
            return Outcome("retry", "no mail server is configured (PENSTOCK_SMTP_URL)")
        # Imported here: a worker without a mail server does not need the library.
        from penstock.delivery import email

        mail = email.server(self._settings.smtp_url, self._settings.mail_from or "")
        return await email.send(notification, mail)
