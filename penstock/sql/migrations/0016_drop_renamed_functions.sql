-- phase: expand
-- Internal functions that have a new name. Their callers are replaced in the same transaction.

drop function if exists
  penstock._is_time(timestamptz),
  penstock._acting_on(text, text[], uuid),
  penstock._act(text, text[], text),
  penstock._do_action(uuid, integer),
  penstock._parents(uuid, jsonb),
  penstock._hold_jobs(uuid[], uuid[], bigint[]),
  penstock._await_lease(bigint),
  penstock._park_new(penstock.jobs, penstock.task_spec[], penstock.ready[]),
  penstock._revive_children(uuid, bigint[]),
  penstock._family(bigint[]),
  penstock._uncount_artifacts(penstock.artifacts[]),
  penstock._hold_bytes(uuid, bigint),
  penstock._visible_artifact(uuid, text[]),
  penstock._fenced_artifact(uuid, text, bigint),
  penstock._has_blob(jsonb),
  penstock._require_alone(uuid),
  penstock._judged_rows(penstock.bulks, jsonb),
  penstock._leased_bulk(bigint, text, bigint),
  penstock._priced(text, uuid, jsonb, text, timestamptz),
  penstock._record(penstock.leases[], jsonb[], boolean, text, jsonb),
  penstock._about(double precision),
  penstock._thrift_of(text, text),
  penstock._finish_of(uuid, jsonb),
  penstock._waiting(uuid, integer),
  penstock._spent(uuid, date),
  penstock._lines(uuid),
  penstock._prefer(tid[]),
  penstock._candidates(jsonb, uuid, jsonb),
  penstock._chosen(jsonb, uuid, jsonb),
  penstock._set_aside(tid[], text, text, timestamptz),
  penstock._reserve_tasks(tid[], timestamptz, boolean),
  penstock._free_unclaimed(bigint[], jsonb[], timestamptz),
  penstock._admit(text[], integer, uuid[], timestamptz, boolean, boolean, boolean),
  penstock._check_arrays(bigint[], bigint[], integer),
  penstock._refusals(text, text, bigint[], bigint[], penstock.leases[], jsonb[], integer),
  penstock._others(bigint[], bigint[], penstock.leases[]),
  penstock._freed(penstock.holds),
  penstock._wake(uuid[], integer),
  penstock._size(jsonb, bigint),
  penstock._places(penstock.endpoints, timestamptz),
  penstock._room(penstock.endpoints, penstock.endpoint_states, timestamptz),
  penstock._spend(penstock.endpoints, timestamptz, bigint, bigint),
  penstock._can_spend(integer, timestamptz),
  penstock._unspend(penstock.leases[]);

-- Views use this one, so it is renamed in place.
do $$
begin
  if to_regprocedure('penstock._pace(double precision, timestamptz, timestamptz)') is not null then
    alter function penstock._pace(double precision, timestamptz, timestamptz) rename to _current_pace;
  end if;
end
$$;
