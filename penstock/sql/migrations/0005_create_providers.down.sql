-- Before this there was one lane for a kind and a provider: the others keep their tasks under another name.
update penstock.lanes l set provider = left(coalesce(provider, ''), 180) || '#' || id where exists (
  select from penstock.lanes o where o.kind = l.kind and o.provider is not distinct from l.provider and o.id < l.id);
alter table penstock.lanes drop constraint lanes_key, drop column tenant_id, drop column endpoint_id, drop column is_gated;
alter table penstock.lanes add constraint lanes_kind_provider_key unique nulls not distinct (kind, provider);
drop index penstock.leases_gated, penstock.parked_waits, penstock.lanes_provider;
drop function if exists penstock.claim_tasks(text, integer, text[], integer);
drop function if exists penstock._lane(text, text, uuid, boolean);
alter table penstock.leases drop column is_gated cascade, drop column usage cascade;
update penstock.parked set until = clock_timestamp() where waits_for is not null;
alter table penstock.parked drop column waits_for cascade;
alter type penstock.task_spec drop attribute route cascade;
alter table penstock.tasks drop column route cascade;
drop table penstock.provider_events, penstock.calls, penstock.spent, penstock.endpoint_states, penstock.endpoints cascade;
