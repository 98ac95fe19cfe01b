"""Tests the key of each provider with a free call: the models that it may use, or why it is refused."""

from __future__ import annotations

from typing import Any, NamedTuple, cast
from uuid import UUID

import httpx

from penstock.contract import provider_keys, tenants
from penstock.errors import PenstockError
from penstock.postgres import db
from penstock.providers import keys, wire
from penstock.providers.catalogue import shipped
from penstock.providers.connection import Connection, Key
from penstock.providers.hosts import OWN
from penstock.providers.registry import adapter, adapters
from penstock.sdk.context import Fail, Retry

_SECONDS = 15.0


class Tried(NamedTuple):
    """The result of trying a key."""

    provider: str
    source: str
    """Whose key: that of the environment, of all tenants, or of one."""
    is_good: bool
    finding: str
    action: str | None = None


async def examine(pool: db.Pool) -> list[Tried]:
    """Try all keys: those that are stored, and those in the environment."""
    found: list[Tried] = []
    stored = await provider_keys.list(pool)
    names: dict[UUID, str] = await tenants.names(pool, ids=(k.tenant_id for k in stored if k.tenant_id))
    for each in stored:
        source = "all tenants" if each.tenant_id is None else f"tenant {names.get(each.tenant_id)}"
        sealed = await provider_keys.get(pool, provider=each.provider, tenant_id=each.tenant_id)
        if sealed is None or sealed.tenant_id != each.tenant_id:
            continue
        try:
            key = keys.unseal(sealed)
        except PenstockError as error:
            found.append(Tried(each.provider, source, False, error.message, error.hint))
            continue
        tenant = "" if each.tenant_id is None else f" --tenant {names.get(each.tenant_id)}"
        command = f"Set the key again: penstock providers keys set {each.provider}{tenant}"
        found.append(await _try(each.provider, source, key, command))
    for name in OWN:
        key = keys.of_environment(name)
        if key is not None:
            command = f"Set {OWN[name].variable} to a valid key."
            found.append(await _try(name, "environment", key, command))
    return found


async def _try(provider: str, source: str, key: Key, command: str) -> Tried:
    how = adapters()[provider][0] if provider in adapters() else adapter(provider, "text")
    url = OWN[provider].url if provider in OWN else f"https://{key.host}/v1"
    if how.models_path is None:
        return Tried(provider, source, True, "not tried: this provider has no free call that needs the key")
    connection = Connection(provider, url, key, seconds=_SECONDS)
    try:
        response = await wire.call(
            connection,
            "GET",
            how.models_path,
            key_header=how.key_header,
            key_prefix=how.key_prefix,
            headers=how.headers,
        )
        return Tried(provider, source, True, _usable(provider, response))
    except (Fail, Retry, httpx.HTTPError) as error:
        is_refused = getattr(error, "code", None) == "provider_key_refused"
        action = command if is_refused else "The key was not tried: check the connection to the provider."
        return Tried(provider, source, False, str(error)[:300], action)


def _usable(provider: str, response: httpx.Response) -> str:
    """The models that the key may use, those of the catalogue by name."""
    try:
        body: Any = response.json()
    except ValueError:
        return "the key is accepted"
    listed: Any = cast("dict[str, Any]", body).get("data") if isinstance(body, dict) else body
    if not isinstance(listed, list):
        return "the key is accepted"
    models = cast("list[Any]", listed)
    ids = {str(cast("dict[str, Any]", each).get("id") or cast("dict[str, Any]", each).get("model_id"))
           for each in models if isinstance(each, dict)}  # fmt: skip
    known = [name.partition("/")[2] for name in shipped().models if name.startswith(f"{provider}/")]
    usable = ", ".join(model for model in known if model in ids) or "none of the catalogue"
    return f"may use {len(ids)} models; of the catalogue: {usable}"
