"""Sender: delivers queued notifications. Every worker and server runs one; the database shares the work."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import structlog

from penstock.contract import notifications
from penstock.delivery import webhook
from penstock.delivery.outcome import Outcome
from penstock.postgres import db
from penstock.settings import Settings
from penstock.types import TakenNotification

log = structlog.get_logger("penstock.delivery")


class Sender:
    """Takes due notifications and delivers them, when told so and every half minute."""

    PAUSE = 30.0
    PAUSE_AFTER_ERROR = 5.0
    BATCH: int = 20

    def __init__(self, pool: db.Pool, settings: Settings) -> None:
        self._pool, self._settings = pool, settings
        self.due = asyncio.Event()
        """Set it when there may be notifications to deliver."""

    async def run(self) -> None:
        pause = random.uniform(0, self.PAUSE)
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self.due.wait()
            self.due.clear()
            try:
                while await self.once():
                    pass
                pause = self.PAUSE * random.uniform(0.8, 1.2)
            except Exception as error:
                log.warning("delivery.failed", error=str(error))
                pause = self.PAUSE_AFTER_ERROR

    async def once(self) -> bool:
        """Deliver one batch, all messages at once. Returns whether there may be more."""
        taken = await notifications.take(self._pool, limit=self.BATCH)
        await asyncio.gather(*(self._deliver(notification) for notification in taken))
        return len(taken) == self.BATCH

    async def _deliver(self, notification: TakenNotification) -> None:
        try:
            outcome = await self._send(notification)
        except Exception as error:
            # One message that cannot be sent must not stop the others.
            log.exception("delivery.error", notification_id=str(notification.id))
            outcome = Outcome("retry", f"the message could not be sent: {type(error).__name__}")
        await notifications.end(
            self._pool, notification=notification, outcome=outcome.result, error=outcome.error
        )
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
