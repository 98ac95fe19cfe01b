-- Prompts: versions of a text for a model. Version 0 is the constant in the code; it is also what the app
-- uses when the database cannot answer. Changes of one name wait for each other (_lock_prompt).

create or replace function penstock._prompt_variables(p_body text)
returns text[] language sql immutable set search_path = penstock, pg_temp as $$
  select coalesce(array_agg(distinct m[1] order by m[1]), '{}')
  from regexp_matches(p_body, '\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}\}', 'g') as m
$$;
comment on function penstock._prompt_variables(text) is 'The names between double braces in a prompt.';

create or replace function penstock._lock_prompt(p_name text)
returns void language sql set search_path = penstock, pg_temp as $$
  select pg_advisory_xact_lock(hashtextextended('penstock.prompt:' || p_name, 0))
$$;
comment on function penstock._lock_prompt(text) is
  'Waits for other transactions that change the prompts of this name.';

create or replace function penstock._guard_prompt()
returns trigger language plpgsql set search_path = penstock, pg_temp as $$
begin
  if old.version > 0 and (tg_op = 'DELETE' or (new.name, new.version, new.body, new.variables, new.model,
      new.max_tokens, new.comment, new.created_by, new.created_at) is distinct from (old.name, old.version,
      old.body, old.variables, old.model, old.max_tokens, old.comment, old.created_by, old.created_at)) then
    perform _refuse(409, 'prompt_fixed',
      format('version %s of prompt %s cannot be changed', old.version, old.name),
      '{}', 'Add a new version.');
  end if;
  return case tg_op when 'DELETE' then old else new end;
end
$$;
comment on function penstock._guard_prompt() is
  'Rejects changes of a version: only whether it is active may change. Version 0 follows the code.';

create or replace trigger prompts_guard before update or delete on penstock.prompts
  for each row execute function penstock._guard_prompt();

create or replace function penstock.declare_prompts(p_prompts jsonb)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_prompt prompts;
begin
  for v_prompt in
    select * from jsonb_populate_recordset(null::prompts, p_prompts) as p order by p.name
  loop
    -- Most calls change nothing, and then neither wait nor write.
    continue when exists (
      select from prompts p where p.name = v_prompt.name and p.version = 0 and (p.body, p.model, p.max_tokens)
        is not distinct from (v_prompt.body, v_prompt.model, v_prompt.max_tokens));
    perform _lock_prompt(v_prompt.name);
    insert into prompts (name, version, body, variables, model, max_tokens, created_by, created_at)
    values (v_prompt.name, 0, v_prompt.body, _prompt_variables(v_prompt.body), v_prompt.model,
      v_prompt.max_tokens, _actor(), _now())
    on conflict (name, version) do update set body = excluded.body, variables = excluded.variables,
      model = excluded.model, max_tokens = excluded.max_tokens, created_by = excluded.created_by,
      created_at = excluded.created_at;
  end loop;
exception when integrity_constraint_violation or data_exception then
  perform _refuse(422, 'invalid_prompt', 'a prompt needs a name and a body: ' || left(sqlerrm, 200));
end
$$;
comment on function penstock.declare_prompts(jsonb) is
  'Stores the constants of an app as version 0 of its prompts: [{"name", "body", "model", "max_tokens"}]. '
  'Workers call it when they start.';

create or replace function penstock.add_prompt(p_name text, p_body text, p_options jsonb default '{}')
returns integer language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_prompt prompts;
  v_unknown text[];
begin
  perform _check_fields(p_options, array['model', 'max_tokens', 'comment', 'activate'], 'prompt');
  perform _lock_prompt(p_name);
  v_prompt := jsonb_populate_record(null::prompts, p_options - 'activate');
  v_prompt.variables := _prompt_variables(p_body);
  -- The code passes the variables of its constant; a version that needs another one could not be rendered.
  select array(select v from unnest(v_prompt.variables) as v where v <> all (p.variables)) into v_unknown
  from prompts p where p.name = p_name and p.version = 0;
  if cardinality(v_unknown) > 0 then
    perform _refuse(422, 'unknown_variable',
      format('the code passes no variable named %s', v_unknown[1]),
      jsonb_build_object('field', 'p_body', 'variables', to_jsonb(v_unknown)),
      'penstock prompts show ' || p_name || ' 0 lists the variables.');
  end if;
  insert into prompts (name, version, body, variables, model, max_tokens, comment, created_by, created_at)
  select p_name, coalesce(max(p.version), 0) + 1, p_body, v_prompt.variables, v_prompt.model,
    v_prompt.max_tokens, coalesce(v_prompt.comment, ''), _actor(), _now()
  from prompts p where p.name = p_name
  returning version into v_prompt.version;
  perform _audit(null, 'prompt.added', null, 'prompt:' || p_name,
    jsonb_build_object('version', v_prompt.version));
  if p_options -> 'activate' = 'true' then
    perform activate_prompt(p_name, v_prompt.version);
  end if;
  return v_prompt.version;
exception when integrity_constraint_violation or data_exception then
  perform _refuse(422, 'invalid_prompt',
    'a prompt needs a name of lower-case letters, digits, _, . and -, and a body of 1 to 100,000 characters; '
    'max_tokens is between 1 and 1,000,000: ' || left(sqlerrm, 200));
end
$$;
comment on function penstock.add_prompt(text, text, jsonb) is
  'Adds a version of a prompt and returns its number. Options: model, max_tokens, comment, activate.';

create or replace function penstock.activate_prompt(
  p_name text, p_version integer, p_expected integer default null)
returns integer language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_active integer;
begin
  perform _lock_prompt(p_name);
  select version into v_active from prompts where name = p_name and is_active;
  v_active := coalesce(v_active, 0);
  if not exists (select from prompts where name = p_name and p_version in (version, 0)) then
    perform _refuse(404, 'unknown_prompt',
      format('prompt %L has no version %s', left(p_name, 100), coalesce(p_version::text, 'null')));
  elsif p_expected <> v_active then
    perform _refuse(409, 'prompt_moved',
      format('version %s of prompt %s is active (expected %s)', v_active, p_name, p_expected),
      jsonb_build_object('active', v_active, 'expected', p_expected));
  elsif p_version <> v_active then
    update prompts set is_active = false where name = p_name and is_active;
    -- No active row stands for version 0, which is in the code.
    update prompts set is_active = p_version > 0, activated_at = _now()
    where name = p_name and version = p_version;
    perform _audit(null, 'prompt.activated', null, 'prompt:' || p_name,
      jsonb_build_object('from', v_active, 'to', p_version));
  end if;
  return v_active;
end
$$;
comment on function penstock.activate_prompt(text, integer, integer) is
  'Makes a version of a prompt the active one; 0 is the constant in the code. Returns the version that was '
  'active. With p_expected, raises 409 prompt_moved if another version is active by now.';

create or replace function penstock.rollback_prompt(p_name text, p_expected integer default null)
returns integer language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_active integer;
  v_earlier integer;
begin
  perform _lock_prompt(p_name);
  select version into v_active from prompts where name = p_name and is_active;
  if not found then
    perform _refuse(409, 'no_earlier_version', format('prompt %L has no active version', left(p_name, 100)));
  end if;
  -- Lower numbers only, so that a second rollback does not bring the bad version back.
  select max(version) into v_earlier from prompts
  where name = p_name and version < v_active and version > 0 and activated_at is not null;
  perform activate_prompt(p_name, coalesce(v_earlier, 0), coalesce(p_expected, v_active));
  return coalesce(v_earlier, 0);
end
$$;
comment on function penstock.rollback_prompt(text, integer) is
  'Activates the newest earlier version that has been active before, or else the constant in the code (0), '
  'and returns its number. With p_expected, raises 409 prompt_moved if another version is active by now.';

create or replace function penstock.active_prompts()
returns table (name text, version integer, body text, model text, max_tokens integer)
language sql stable security definer set search_path = penstock, pg_temp as $$
  select p.name, p.version, p.body, p.model, p.max_tokens from prompts p where p.is_active order by p.name
$$;
comment on function penstock.active_prompts() is 'The active version of every prompt that has one.';

-- Jobs that keep their versions

create or replace function penstock.pin_prompts(
  p_task_id bigint, p_worker_id text, p_lease bigint, p_names text[])
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
begin
  perform _require_lease(p_task_id, p_worker_id, p_lease);
  insert into prompt_pins (job_id, name, version, tenant_id)
  select l.job_id, p.name, max(p.version), l.tenant_id
  from leases l join prompts p on p.name = any (p_names) and (p.is_active or p.version = 0)
  where l.task_id = p_task_id group by l.job_id, p.name, l.tenant_id order by p.name
  on conflict do nothing;
end
$$;
comment on function penstock.pin_prompts(bigint, text, bigint, text[]) is
  'Lets all tasks of a job use the versions of these prompts that are active now. The first call counts.';

create or replace function penstock.pinned_prompts(p_job_id uuid)
returns table (name text, version integer, body text, model text, max_tokens integer)
language sql stable security definer set search_path = penstock, pg_temp as $$
  select p.name, p.version, p.body, p.model, p.max_tokens from prompt_pins n
  join prompts p on p.name = n.name and p.version = n.version where n.job_id = p_job_id order by p.name
$$;
comment on function penstock.pinned_prompts(uuid) is 'The versions of prompts that the tasks of a job use.';

-- Uses

create or replace function penstock._prompt_details(p_use penstock.prompt_uses)
returns jsonb language sql immutable set search_path = penstock, pg_temp as $$
  select jsonb_build_object('prompt_name', p_use.name, 'prompt_version', p_use.version,
    'prompt_fallback', p_use.is_fallback)
$$;
comment on function penstock._prompt_details(penstock.prompt_uses) is
  'What the usage event of a call says about its prompt.';

create or replace function penstock.record_prompt_uses(p_uses jsonb)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
begin
  insert into prompt_uses (at, tenant_id, name, version, is_fallback, action, job_id, task_id, lease,
    is_failed, seconds)
  select _now(), t.tenant_id, u.name, u.version, coalesce(u.is_fallback, false), t.kind, t.job_id, t.id,
    u.lease, coalesce(u.is_failed, false), u.seconds
  from jsonb_populate_recordset(null::prompt_uses, p_uses) as u
  join tasks t on t.job_id = u.job_id and t.id = u.task_id
  where u.name ~ '^[a-z][a-z0-9_.-]{0,99}$' and u.version >= 0
  on conflict do nothing;
end
$$;
comment on function penstock.record_prompt_uses(jsonb) is
  'Records which versions attempts have used: [{"job_id", "task_id", "lease", "name", "version", '
  '"is_fallback", "is_failed", "seconds"}]. A repeated line counts once.';

create or replace function penstock._note_prompt(p_tenant_id uuid, p_action text, p_details jsonb)
returns void language plpgsql set search_path = penstock, pg_temp as $$
begin
  insert into prompt_uses (at, tenant_id, name, version, is_fallback, action, is_failed, seconds)
  select _now(), p_tenant_id, p_details ->> 'prompt_name', (p_details ->> 'prompt_version')::integer,
    coalesce((p_details ->> 'prompt_fallback')::boolean, false), p_action,
    coalesce((p_details ->> 'failed')::boolean, false), (p_details ->> 'seconds')::double precision;
exception when data_exception or integrity_constraint_violation then
  perform _refuse(422, 'invalid_prompt', 'details: prompt_name needs a prompt_version, which is a number; '
    'prompt_fallback and failed are true or false, seconds is a number', '{"field": "p_options.details"}');
end
$$;
comment on function penstock._note_prompt(uuid, text, jsonb) is
  'Records the use of a prompt outside of a task, from the details of its usage event.';
