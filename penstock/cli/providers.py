"""`penstock providers`: keys of providers, and the catalogue of their prices and limits."""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import typer

from penstock.cli import actors, output
from penstock.cli.options import TenantOption, WithDefault, command, tenant_id_of
from penstock.cli.output import Column
from penstock.contract import provider_keys, tenants
from penstock.errors import PenstockError
from penstock.postgres import db
from penstock.types import ProviderKey

group = typer.Typer(
    help="Manage keys of providers, and the catalogue of their prices and limits.", no_args_is_help=True
)
keys_group = typer.Typer(
    help="Store, list and remove keys of providers. A key is never shown again.\n\nDefault command: ls.",
    cls=WithDefault,
)
group.add_typer(keys_group, name="keys")

ProviderArgument = Annotated[
    str,
    typer.Argument(metavar="PROVIDER", show_default=False, help="Provider name, for example openai."),
]
FileOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", show_default=False, help="Catalogue file (default: the shipped one)."),
]


@command(keys_group, "ls")
async def ls(pool: db.Pool) -> None:
    """List stored keys with the host that each is sent to, without the keys themselves."""
    found = await provider_keys.list(pool)
    names = await tenants.names(pool, ids=(key.tenant_id for key in found if key.tenant_id is not None))
    people = await actors.names(pool, [key.created_by for key in found])
    columns = [
        Column("PROVIDER", lambda key: key.provider),
        Column("TENANT", lambda key: _tenant(key, names)),
        Column("HOST", lambda key: key.host),
        Column("AGE", lambda key: output.age(key.created_at), is_right=True),
        Column("SET BY", lambda key: people[key.created_by], is_spare=True, style="dim"),
        Column("MASTER KEY", lambda key: key.master_id, is_spare=True, style="dim"),
    ]
    output.rows(found, columns, empty="No keys. Add one: penstock providers keys set openai")


def _tenant(key: ProviderKey, names: dict[UUID, str]) -> str:
    return "all" if key.tenant_id is None else names.get(key.tenant_id, str(key.tenant_id))


@command(keys_group, "set")
async def set(
    pool: db.Pool,
    provider: ProviderArgument,
    tenant: TenantOption = None,
    host: Annotated[
        str | None,
        typer.Option(
            metavar="HOST",
            show_default=False,
            help="The host that gets the key, for providers not known by name.",
        ),
    ] = None,
) -> None:
    """Store a key, for all tenants or for one. Reads it from standard input, never from an argument."""
    from penstock.providers import keys

    tenant_id = await tenant_id_of(pool, tenant) if tenant else None
    sealed = keys.seal(provider, _read_secret(provider), host=host, tenant_id=tenant_id)
    await provider_keys.set(pool, sealed)
    output.document(
        {"provider": provider, "tenant_id": tenant_id, "host": sealed.host},
        lambda: output.note(f"Stored the key of {provider}. It is sent to {sealed.host} only."),
    )


def _read_secret(provider: str) -> str:
    """The key from standard input, because arguments are visible to other users of the machine."""
    try:
        secret = getpass.getpass(f"Key of {provider}: ") if sys.stdin.isatty() else sys.stdin.readline()
    except (OSError, ValueError) as error:
        raise PenstockError(f"cannot read the key from standard input: {error}") from error
    return secret.strip()


@command(keys_group, "rm")
async def rm(pool: db.Pool, provider: ProviderArgument, tenant: TenantOption = None) -> None:
    """Remove a stored key: the one for all tenants, or that of one. Asks for confirmation."""
    tenant_id = await tenant_id_of(pool, tenant) if tenant else None
    output.confirm(f"Remove the key of {provider}?")
    await provider_keys.remove(pool, provider=provider, tenant_id=tenant_id)
    output.document({"provider": provider}, lambda: output.note(f"Removed the key of {provider}."))


@command(keys_group, "rotate")
async def rotate(pool: db.Pool) -> None:
    """Encrypt all stored keys with the first master key of PENSTOCK_MASTER_KEY."""
    from penstock.providers import keys

    found = await provider_keys.list(pool)
    for each in found:
        sealed = await provider_keys.get(pool, provider=each.provider, tenant_id=each.tenant_id)
        if sealed is not None and sealed.tenant_id == each.tenant_id:
            await provider_keys.set(pool, keys.reseal(sealed))
    output.document(
        {"rotated": len(found)}, lambda: output.note(f"Encrypted {output.counted(len(found), 'key')}.")
    )


@command(group, "catalogue")
def catalogue(file: FileOption = None) -> None:
    """Show the prices and limits of the catalogue, each with its source and when it was checked."""
    from penstock.providers import catalogue

    found = catalogue.shipped() if file is None else catalogue.read_file(file)
    rows = [{"name": name, **model.model_dump(mode="json")} for name, model in found.models.items()]
    columns = [
        Column("NAME", lambda row: row["name"]),
        Column("MEDIA", lambda row: ", ".join(row["media"])),
        Column("PRICES (USD)", _prices),
        Column("LIMITS", lambda row: ", ".join(f"{key}={value}" for key, value in row["limits"].items())),
        Column("CHECKED", lambda row: row["checked"]),
        Column("SOURCE", lambda row: row["source"], is_wide=True, style="dim"),
    ]
    output.rows(rows, columns, empty="The catalogue is empty.")


def _prices(row: dict[str, Any]) -> str:
    return ", ".join(f"{meter} {amount} per {per:,}" for meter, (amount, per) in row["prices"].items())


@command(group, "apply")
async def apply(
    pool: db.Pool,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Only these, such as openai/gpt-5.4-mini.")
    ] = None,
    file: FileOption = None,
) -> None:
    """Write prices and limits of the catalogue into the database. Newer prices there stay."""
    from penstock.providers import catalogue

    found = catalogue.shipped() if file is None else catalogue.read_file(file)
    changed = await catalogue.apply(pool, found, names or None)
    columns = [
        Column("PROVIDER", lambda row: row["provider"]),
        Column("CHANGE", lambda row: row["change"], is_wide=True),
    ]
    rows = [{"provider": name, "change": change} for name, change in changed]
    output.rows(rows, columns, empty="Nothing to change.")
