-- phase: expand
-- The hosts whose answers count for a provider, and closures that end.

alter table penstock.endpoints add column hosts text[];
comment on column penstock.endpoints.hosts is
  'The hosts of the provider: only their answers close or slow its lanes. Null: those known for its name.';
comment on column penstock.endpoint_states.closed_until is 'The provider asked to wait until then.';
update penstock.endpoint_states set closed_until = clock_timestamp() + interval '15 minutes'
  where closed_until = 'infinity';
-- The text of a provider may concern one tenant; provider_events keeps it for operators.
update penstock.endpoint_states set closed_reason = 'quota exhausted' where closed_reason like 'quota exhausted:%';
