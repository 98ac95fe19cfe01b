"""`penstock gates`: what a plan must include, and what a tenant's plan includes."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from penstock.cli import output
from penstock.cli.options import TenantArgument, WithDefault, command, tenant_id_of
from penstock.cli.output import Column
from penstock.cli.parsing import amount_of
from penstock.cli.usage import Mode
from penstock.contract import entitlements
from penstock.postgres import db
from penstock.types import Entitlements, GateVerdict

group = typer.Typer(help="Manage gates: what a plan must include.\n\nDefault command: ls.", cls=WithDefault)

GateArgument = Annotated[str, typer.Argument(metavar="GATE", show_default=False, help="Name of the gate.")]


@command(group, "ls")
async def ls(pool: db.Pool) -> None:
    """List gates."""
    columns = [
        Column("NAME", lambda gate: gate.name),
        Column("NEEDS", lambda gate: gate.feature or f"{gate.meter} left"),
        Column("MODE", lambda gate: gate.mode),
        Column("KINDS", lambda gate: ", ".join(gate.kinds)),
        Column("COMMENT", lambda gate: gate.comment, is_wide=True, style="dim"),
    ]
    output.rows(await entitlements.gates(pool), columns, empty="No gates.")


@command(group, "set")
async def set(
    pool: db.Pool,
    name: GateArgument,
    feature: Annotated[str | None, typer.Option(help="Feature that the plan must have.")] = None,
    meter: Annotated[str | None, typer.Option(help="Meter that must have room.")] = None,
    mode: Annotated[Mode | None, typer.Option(help="Only record (default), or reject.")] = None,
    kinds: Annotated[
        str | None, typer.Option(metavar="A,B", help="Kinds of tasks, or job types, that need the feature.")
    ] = None,
    comment: Annotated[str | None, typer.Option(help="What the gate is for.")] = None,
) -> None:
    """Create or change a gate. Takes effect at once."""
    given: dict[str, Any] = {
        "feature": feature,
        "meter": meter,
        "mode": mode.value if mode else None,
        "kinds": None if kinds is None else [word for word in kinds.split(",") if word],
        "comment": comment,
    }
    values: Any = {key: value for key, value in given.items() if value is not None}
    await entitlements.set_gate(pool, name=name, **values)
    [found] = [gate for gate in await entitlements.gates(pool) if gate.name == name]
    output.document(found, lambda: output.note(f"{found.name}: {found.mode}"))


@command(group, "rm")
async def rm(pool: db.Pool, name: GateArgument) -> None:
    """Remove a gate. Tasks that it held back are queued."""
    await entitlements.remove_gate(pool, name=name)
    output.document({"name": name}, lambda: output.note(f"Removed gate {name}."))


@command(group, "check")
async def check(
    pool: db.Pool,
    name: GateArgument,
    tenant: TenantArgument,
    amount: Annotated[str, typer.Option(help="How much more of the meter.")] = "1",
) -> None:
    """Check whether a tenant passes a gate."""
    tenant_id = await tenant_id_of(pool, tenant)
    verdict = await entitlements.check(
        pool, gate=name, tenant_id=tenant_id, amount=amount_of(amount, "--amount")
    )
    output.document(verdict, lambda: _verdict(verdict))


def _verdict(verdict: GateVerdict) -> None:
    said = "passes" if not verdict.would_have_blocked else "is rejected"
    if verdict.would_have_blocked and verdict.allowed:
        said = "would be rejected (the gate only observes)"
    output.note(f"Plan {verdict.plan or 'none'} {said}.")


@command(group, "show")
async def show(pool: db.Pool, tenant: TenantArgument) -> None:
    """Show what a tenant's plan allows: limits and capabilities."""
    found = await entitlements.resolve(pool, tenant_id=await tenant_id_of(pool, tenant))
    output.document(found, lambda: _show(found))


def _show(found: Entitlements) -> None:
    until = f" until {found.until:%Y-%m-%d %H:%M %Z}" if found.until else ""
    limits = [f"{amount:,f} {meter}" for meter, amount in found.limits.items() if amount is not None]
    output.fields(
        [
            ("tier", found.tier or "none"),
            ("plan", f"{found.plan or 'none'}{until}"),
            ("capabilities", ", ".join(name for name, has in found.capabilities.items() if has)),
            ("missing", ", ".join(name for name, has in found.capabilities.items() if not has)),
            ("limits", ", ".join(limits)),
        ]
    )
