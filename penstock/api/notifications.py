"""Notifications over HTTP: targets, and the delivery of messages."""

from __future__ import annotations

from uuid import UUID

from fastapi import Response
from pydantic import BaseModel, Field, StrictBool

from penstock.api.fields import RequestModel
from penstock.api.pages import LimitQuery, Page, TenantQuery, UuidCursor, page
from penstock.api.routes import Conn, SecretRoute, router
from penstock.contract import notifications
from penstock.types import (
    Channel,
    NewNotificationTarget,
    Notification,
    NotificationEvent,
    NotificationTarget,
)

routes = router("notifications")
secret_routes = router("notifications", SecretRoute)


class NotificationTargetRequest(RequestModel):
    """An address that notifications go to."""

    channel: Channel
    address: str = Field(max_length=2000, examples=["https://example.com/hooks/penstock"])
    events: list[NotificationEvent] = Field(default=["alert"], min_length=1, max_length=20)
    is_enabled: StrictBool = True
    tenant_id: UUID | None = None


class NotificationSecret(BaseModel):
    """The secret that signs a webhook. It is shown once."""

    secret: str


class NotificationQueued(BaseModel):
    """Id of the queued message."""

    id: UUID


@routes.get("/notifications")
async def list_notifications(
    conn: Conn, tenant_id: TenantQuery = None, cursor: UuidCursor = None, limit: LimitQuery = 50
) -> Page[Notification]:
    """List notifications and their delivery status, newest first."""
    found = await notifications.list(conn, tenant_id=tenant_id, before=cursor, limit=limit + 1)
    return page(found, limit, lambda notification: notification.id)


@routes.get("/notification-targets")
async def list_notification_targets(
    conn: Conn, tenant_id: TenantQuery = None, cursor: UuidCursor = None, limit: LimitQuery = 50
) -> Page[NotificationTarget]:
    """List notification targets, oldest first."""
    found = await notifications.list_targets(conn, tenant_id=tenant_id, after=cursor, limit=limit + 1)
    return page(found, limit, lambda target: target.id)


@secret_routes.put("/notification-targets")
async def set_notification_target(conn: Conn, target: NotificationTargetRequest) -> NewNotificationTarget:
    """Create or change the target with this address. The secret of a new webhook is shown once."""
    return await notifications.set_target(conn, **target.model_dump())


@routes.delete("/notification-targets/{target_id}", status_code=204)
async def remove_notification_target(conn: Conn, target_id: UUID) -> Response:
    """Remove a target. Its queued notifications are not sent."""
    await notifications.remove_target(conn, target_id=target_id)
    return Response(status_code=204)


@routes.post("/notification-targets/{target_id}/test")
async def send_test_notification(conn: Conn, target_id: UUID) -> NotificationQueued:
    """Queue a test message for a target."""
    return NotificationQueued(id=await notifications.send_test(conn, target_id=target_id))


@secret_routes.post("/notification-targets/{target_id}/rotate")
async def rotate_notification_secret(conn: Conn, target_id: UUID) -> NotificationSecret:
    """Give a webhook a new secret. For a day the old one signs as well."""
    return NotificationSecret(secret=await notifications.rotate_secret(conn, target_id=target_id))
