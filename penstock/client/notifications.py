"""Notifications: subscriptions, messages and their delivery."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from functools import partial
from uuid import UUID

from penstock.client.core import identifier, path
from penstock.client.responses import read
from penstock.client.transport import IO, Resource, call, listing
from penstock.types import Channel, NewNotificationTarget, Notification, NotificationTarget


class Notifications(Resource[IO]):
    """Notifications by e-mail and webhook."""

    @listing
    def list(
        self, *, tenant_id: UUID | str | None = None, limit: int | None = None
    ) -> AsyncGenerator[Notification]:
        """Iterate over notifications, newest first, fetching pages as needed."""
        query = {"tenant_id": self._core.tenant_or_none(tenant_id)}
        return self._core.pages(partial(read, Notification), "/api/notifications", query, limit)

    @listing
    def targets(
        self, *, tenant_id: UUID | str | None = None, limit: int | None = None
    ) -> AsyncGenerator[NotificationTarget]:
        """Iterate over the addresses that notifications go to, oldest first."""
        query = {"tenant_id": self._core.tenant_or_none(tenant_id)}
        return self._core.pages(partial(read, NotificationTarget), "/api/notification-targets", query, limit)

    @call
    async def set_target(
        self,
        channel: Channel,
        address: str,
        *,
        events: Sequence[str] = ("alert",),
        is_enabled: bool = True,
        tenant_id: UUID | str | None = None,
    ) -> NewNotificationTarget:
        """Create or change the target with this address. The secret of a new webhook is returned once."""
        body = {
            "channel": channel,
            "address": address,
            "events": [*events],
            "is_enabled": is_enabled,
            "tenant_id": self._core.tenant_or_none(tenant_id),
        }
        answer = await self._core.request("PUT", "/api/notification-targets", body=body)
        return read(NewNotificationTarget, answer.json())

    @call
    async def remove_target(self, target_id: UUID | str) -> None:
        """Remove a target. Its queued notifications are not sent."""
        await self._core.request("DELETE", self._path(target_id))

    @call
    async def send_test(self, target_id: UUID | str) -> UUID:
        """Queue a test message for a target and return its id."""
        answer = await self._core.request("POST", self._path(target_id) + "/test")
        return answer.field(UUID, "id")

    @call
    async def rotate_secret(self, target_id: UUID | str) -> str:
        """Give a webhook a new secret and return it. For a day the old one signs as well."""
        answer = await self._core.request("POST", self._path(target_id) + "/rotate")
        return answer.field(str, "secret")

    def _path(self, target_id: UUID | str) -> str:
        return path("/api/notification-targets/{}", identifier(target_id, "target_id"))
