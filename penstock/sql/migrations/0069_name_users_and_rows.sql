-- phase: expand
-- Who started a job, as a column of jobs and of the ledger, which outlives jobs; and an id for each row of a
-- bulk job. Expressions would not do: under row security only a column can be looked up in an index.

alter table penstock.jobs add column user_id uuid;
alter table penstock.cost_entries add column user_id uuid;
alter table penstock.bulk_rows add column id uuid;
alter table penstock.bulk_rows alter column id set default gen_random_uuid();
comment on column penstock.jobs.user_id is 'The user who started it; null: the service.';
comment on column penstock.cost_entries.user_id is
  'The user who started the job; null: the service, or no job.';
comment on column penstock.bulk_rows.id is
  'One id for the row; null in rows that are older than this column.';

-- The function of the previous version names the columns one by one. It may run until this migration has
-- replaced it, which a later migration outside a transaction delays.
do $$
declare
  v_function regprocedure := to_regprocedure('penstock._validated_rows(penstock.bulks, jsonb)');
begin
  if v_function is not null then
    execute replace(pg_get_functiondef(v_function), 'null::integer, null::text',
      'null::integer, null::text, gen_random_uuid()');
  end if;
end
$$;
