"""Invitations over HTTP, and leaving a tenant."""

from __future__ import annotations

from uuid import UUID

from fastapi import Response
from pydantic import BaseModel, Field

from penstock.api.fields import RequestModel
from penstock.api.routes import AdminRoute, Conn, SecretRoute, router
from penstock.contract import invitations
from penstock.errors import NotFound
from penstock.types import Invitation, Invited, NewInvitation, Role

routes = router("tenants", AdminRoute)
secret_routes = router("tenants", SecretRoute)


class InvitationRequest(RequestModel):
    """An invitation to create."""

    role: Role = "member"
    email: str | None = Field(None, min_length=3, max_length=320, examples=["ann@example.org"])
    days: int = Field(7, ge=1, le=90)


class SecretRequest(RequestModel):
    """The secret of an invitation's link."""

    secret: str = Field(min_length=1, max_length=100)


class LeaveRequest(RequestModel):
    """Whether the tenant may add the caller again."""

    block: bool = False


class Joined(BaseModel):
    """The tenant that the caller is a member of now."""

    tenant_id: UUID


@secret_routes.post("/tenants/{tenant_id}/invitations", status_code=201)
async def create_invitation(conn: Conn, tenant_id: UUID, invitation: InvitationRequest) -> NewInvitation:
    """Invite a user. The response shows the secret once; the link is `/dashboard/invitations/SECRET`."""
    return await invitations.create(conn, tenant_id=tenant_id, **invitation.model_dump())


@routes.get("/tenants/{tenant_id}/invitations")
async def list_invitations(conn: Conn, tenant_id: UUID) -> list[Invitation]:
    """List a tenant's invitations, newest first."""
    return await invitations.list(conn, tenant_id=tenant_id)


@routes.delete("/invitations/{invitation_id}", status_code=204)
async def revoke_invitation(conn: Conn, invitation_id: UUID) -> Response:
    """Revoke a pending invitation."""
    await invitations.revoke(conn, invitation_id=invitation_id)
    return Response(status_code=204)


@routes.post("/invitations/look-up")
async def get_invitation(conn: Conn, request: SecretRequest) -> Invited:
    """Get the tenant and role of an invitation, before answering it."""
    found = await invitations.get(conn, secret=request.secret)
    if found is None:
        raise NotFound("the invitation does not exist, has expired or was used", code="unknown_invitation")
    return found


@routes.post("/invitations/accept")
async def accept_invitation(conn: Conn, request: SecretRequest) -> Joined:
    """Accept an invitation: the calling user becomes a member."""
    return Joined(tenant_id=await invitations.accept(conn, secret=request.secret))


@routes.post("/invitations/decline", status_code=204)
async def decline_invitation(conn: Conn, request: SecretRequest) -> Response:
    """Decline an invitation. Nobody can use it any more."""
    await invitations.decline(conn, secret=request.secret)
    return Response(status_code=204)


@routes.post("/tenants/{tenant_id}/leave", status_code=204)
async def leave_tenant(conn: Conn, tenant_id: UUID, request: LeaveRequest) -> Response:
    """Leave a tenant. With `block` it cannot make the caller a member again without an invitation."""
    await invitations.leave(conn, tenant_id=tenant_id, block=request.block)
    return Response(status_code=204)
