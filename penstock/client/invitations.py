"""Invitations to tenants."""

from __future__ import annotations

import builtins
from uuid import UUID

from penstock.client.core import identifier, path
from penstock.client.responses import read
from penstock.client.transport import IO, Resource, call
from penstock.types import Invitation, Invited, NewInvitation, Role


class Invitations(Resource[IO]):
    """Invitations: a user becomes a member of a tenant by accepting one."""

    @call
    async def list(self, *, tenant_id: UUID | str | None = None) -> builtins.list[Invitation]:
        """A tenant's invitations, newest first."""
        url_path = path("/api/tenants/{}/invitations", await self._core.tenant(tenant_id))
        answer = await self._core.request("GET", url_path)
        return read(builtins.list[Invitation], answer.json())

    @call
    async def create(
        self,
        role: Role = "member",
        *,
        email: str | None = None,
        days: int = 7,
        tenant_id: UUID | str | None = None,
    ) -> NewInvitation:
        """Invite a user. The secret for the link is returned once."""
        url_path = path("/api/tenants/{}/invitations", await self._core.tenant(tenant_id))
        answer = await self._core.request("POST", url_path, body={"role": role, "email": email, "days": days})
        return read(NewInvitation, answer.json())

    @call
    async def revoke(self, invitation_id: UUID | str) -> None:
        """Revoke a pending invitation."""
        url_path = path("/api/invitations/{}", identifier(invitation_id, "invitation_id"))
        await self._core.request("DELETE", url_path)

    @call
    async def get(self, secret: str) -> Invited:
        """The tenant and role of an invitation, before answering it."""
        answer = await self._core.request("POST", "/api/invitations/look-up", body={"secret": secret})
        return read(Invited, answer.json())

    @call
    async def accept(self, secret: str) -> UUID:
        """Accept an invitation. Returns the tenant that the calling user is a member of now."""
        answer = await self._core.request("POST", "/api/invitations/accept", body={"secret": secret})
        return answer.field(UUID, "tenant_id")

    @call
    async def decline(self, secret: str) -> None:
        """Decline an invitation. Nobody can use it any more."""
        await self._core.request("POST", "/api/invitations/decline", body={"secret": secret})

    @call
    async def leave(self, tenant_id: UUID | str, *, block: bool = False) -> None:
        """Leave a tenant. With `block` it cannot make the caller a member again without an invitation."""
        url_path = path("/api/tenants/{}/leave", identifier(tenant_id, "tenant_id"))
        await self._core.request("POST", url_path, body={"block": block})
