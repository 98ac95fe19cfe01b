"""Delivery of notifications, by e-mail and by signed webhooks.

sender    takes due notifications, delivers them, reports how it went
email     one message over SMTP
webhook   one signed request, to an address that was checked
addresses which network addresses a webhook may reach
"""

from __future__ import annotations

from penstock.delivery.sender import Sender

__all__ = ["Sender"]
