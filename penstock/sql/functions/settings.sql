-- Settings: configuration that every worker shares.

create or replace function penstock._setting(p_name text)
returns jsonb language sql stable set search_path = penstock, pg_temp as $$
  select value from penstock.settings where name = p_name
$$;
comment on function penstock._setting(text) is 'The value of a setting.';

insert into penstock.settings (name, value, comment) values
  ('maintenance', 'false', 'While true nothing is claimed; running tasks end normally.'),
  ('lease_seconds', '30', 'How long a claim holds a task without a heartbeat.'),
  ('max_deaths', '3', 'A task whose worker died this often goes to the dead letters.'),
  ('max_input_bytes', '262144', 'Largest input of a task, and largest params of a job.'),
  ('max_output_bytes', '262144', 'Largest output of a task kept in the database.'),
  ('max_tasks_per_call', '100000', 'Most tasks one call may add.'),
  ('retention_days', '90', 'Ended jobs are kept this long.'),
  ('base_currency', '"USD"', 'What budgets are in, and sums of costs. Not to be changed once there are costs.'),
  ('default_plan', '"free"', 'The plan of a user''s personal tenant; an empty word: none.')
on conflict (name) do nothing;

create or replace function penstock.set_setting(p_name text, p_value jsonb)
returns void language plpgsql security definer set search_path = penstock, pg_temp as $$
declare
  v_old jsonb;
begin
  select value into v_old from settings where name = p_name for update;
  if not found then
    perform _refuse(404, 'unknown_setting', format('there is no setting %L', p_name));
  end if;
  if jsonb_typeof(p_value) is distinct from jsonb_typeof(v_old) then
    perform _refuse(422, 'invalid_setting', format('%s must be a %s', p_name, jsonb_typeof(v_old)));
  end if;
  -- A value that no call could use would stop everything until somebody finds out why.
  if jsonb_typeof(p_value) = 'number' and ((p_value)::numeric % 1 <> 0 or (p_value)::numeric not between
      case when p_name in ('lease_seconds', 'max_deaths', 'max_tasks_per_call') then 1 else 0 end
      and case p_name when 'lease_seconds' then 86400 when 'retention_days' then 36500 else 2000000000 end) then
    perform _refuse(422, 'invalid_setting', format('%s is out of range', p_name));
  end if;
  update settings set value = p_value where name = p_name;
  perform _audit(null, 'setting.changed', null, 'setting:' || p_name,
    jsonb_build_object('from', v_old, 'to', p_value));
end
$$;
comment on function penstock.set_setting(text, jsonb) is 'Changes a setting, with an audit line.';
