"""Notifications: subscriptions, messages, and the failures in a row that cause alerts."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from typing import Any, LiteralString
from uuid import UUID

from penstock.contract import filters
from penstock.postgres import db
from penstock.types import (
    Failure,
    NewNotificationTarget,
    Notification,
    NotificationTarget,
    Streak,
    TakenNotification,
)

_TARGETS: LiteralString = """\
select id, tenant_id, channel, address, events, is_enabled, disabled_reason, created_by, created_at
from penstock.notification_targets where """
_NOTIFICATIONS: LiteralString = """\
select id, tenant_id, target_id, channel, address, event, subject, status, attempts, next_try_at, last_error,
  created_at, sent_at
from penstock.notifications where """
_STREAKS: LiteralString = """\
select tenant_id, scope, failures, began_at, last_at, alerted_at from penstock.streaks where """
_FAILURES: LiteralString = """\
select id, at, tenant_id, scope, subject, code, message, job_id, task_id from penstock.failures where """


async def set_target(
    database: db.Database,
    *,
    channel: str,
    address: str,
    events: Sequence[str] = ("alert",),
    tenant_id: UUID | None = None,
    is_enabled: bool = True,
) -> NewNotificationTarget:
    """Create or change the tenant's target with this address."""
    rows = await db.call(
        database,
        "set_notification_target",
        p_channel=channel,
        p_address=address,
        p_events=builtins.list(events),
        p_options={"tenant_id": str(tenant_id) if tenant_id else None, "is_enabled": is_enabled},
    )
    return NewNotificationTarget(**rows[0])


async def list_targets(
    database: db.Database, *, tenant_id: UUID | None = None, after: UUID | None = None, limit: int = 50
) -> builtins.list[NotificationTarget]:
    """Targets, oldest first. The next page is `after` the id of the last target of this page."""
    statement = _TARGETS + (
        "(%s::uuid is null or tenant_id = %s) and (%s::uuid is null or id > %s) order by id limit %s"
    )
    rows = await db.rows(database, statement, (tenant_id, tenant_id, after, after, filters.page(limit)))
    return [NotificationTarget(*row) for row in rows]


async def remove_target(database: db.Database, *, target_id: UUID) -> None:
    """Remove a target. Its queued notifications are not sent."""
    await db.call(database, "remove_notification_target", p_target_id=target_id)


async def rotate_secret(database: db.Database, *, target_id: UUID) -> str:
    """Give a webhook a new secret and return it. For a day the old one signs as well."""
    return await db.value(database, "rotate_notification_secret", p_target_id=target_id)


async def send_test(database: db.Database, *, target_id: UUID) -> UUID:
    """Queue a test message for a target and return its id."""
    return await db.value(database, "send_test_notification", p_target_id=target_id)


async def list(
    database: db.Database, *, tenant_id: UUID | None = None, before: UUID | None = None, limit: int = 50
) -> builtins.list[Notification]:
    """Notifications, newest first. The next page is `before` the id of the last one of this page."""
    statement = _NOTIFICATIONS + (
        "(%s::uuid is null or tenant_id = %s) and (%s::uuid is null or id < %s) order by id desc limit %s"
    )
    rows = await db.rows(database, statement, (tenant_id, tenant_id, before, before, filters.page(limit)))
    return [Notification(*row) for row in rows]


async def streaks(
    database: db.Database, *, tenant_id: UUID | None = None, limit: int = 50
) -> builtins.list[Streak]:
    """Failures in a row, most recent first."""
    statement = _STREAKS + "(%s::uuid is null or tenant_id = %s) order by last_at desc limit %s"
    rows = await db.rows(database, statement, (tenant_id, tenant_id, filters.page(limit)))
    return [Streak(*row) for row in rows]


async def failures(
    database: db.Database, *, tenant_id: UUID | None = None, limit: int = 50
) -> builtins.list[Failure]:
    """The latest failures, newest first."""
    statement = _FAILURES + "(%s::uuid is null or tenant_id = %s) order by id desc limit %s"
    rows = await db.rows(database, statement, (tenant_id, tenant_id, filters.page(limit)))
    return [Failure(*row) for row in rows]


async def record_outcome(
    database: db.Database,
    *,
    tenant_id: UUID,
    scope: str,
    is_success: bool,
    subject: str | None = None,
    code: str | None = None,
    message: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Record a success or a failure within a scope. Returns the failures in a row and whether it alerted."""
    return await db.value(
        database,
        "record_outcome",
        p_tenant_id=tenant_id,
        p_scope=scope,
        p_is_success=is_success,
        p_subject=subject,
        p_code=code,
        p_message=message,
        p_options=dict(options or {}),
    )


async def take(database: db.Database, *, limit: int = 20) -> builtins.list[TakenNotification]:
    """Take due notifications for 60 seconds."""
    return [TakenNotification(**row) for row in await db.call(database, "take_notifications", p_limit=limit)]


async def end(
    database: db.Database, *, notification: TakenNotification, outcome: str, error: str | None = None
) -> bool:
    """Report the outcome of sending. Returns False if another sender has the notification by now."""
    return await db.value(
        database,
        "end_notification",
        p_id=notification.id,
        p_attempt=notification.attempt,
        p_outcome=outcome,
        p_error=error,
    )
