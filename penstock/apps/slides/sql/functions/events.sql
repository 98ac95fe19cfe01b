-- The toggle of an event. Switching it on starts a job that queues the slides that were uploaded before.

create or replace function slides._count_toggle()
returns trigger language plpgsql security definer set search_path = slides, pg_temp as $$
begin
  new.updated_at := penstock.clock();
  new.toggles := old.toggles + (
    new.thumbnail_generation_enabled and not old.thumbnail_generation_enabled)::integer;
  return new;
end
$$;
comment on function slides._count_toggle() is 'Counts how often the generation of an event is switched on.';

create or replace trigger events_toggle before update on slides.events
  for each row execute function slides._count_toggle();

create or replace function slides._start_retroactive()
returns trigger language plpgsql security definer set search_path = slides, pg_temp as $$
begin
  perform slides._start('thumbnails_retroactive', jsonb_build_object('event_id', new.id),
    jsonb_build_array(jsonb_build_object('kind', 'thumbnail_select', 'key', 'select/1',
      'input', jsonb_build_object('event_id', new.id, 'number', 1))),
    new.tenant_id, format('slides:event:%s:%s', new.id, new.toggles));
  return null;
end
$$;
comment on function slides._start_retroactive() is 'Starts the job that queues the slides of an event.';

create or replace trigger events_retroactive after update of thumbnail_generation_enabled on slides.events
  for each row when (new.thumbnail_generation_enabled and not old.thumbnail_generation_enabled)
  execute function slides._start_retroactive();

create or replace function slides.set_thumbnail_generation(p_event_id uuid, p_enabled boolean default true)
returns boolean language plpgsql security definer set search_path = slides, pg_temp as $$
declare
  v_tenant_id uuid;
begin
  if p_enabled is null then
    perform penstock.refuse(422, 'invalid_toggle', 'p_enabled must be true or false (got null)',
      '{"field": "p_enabled"}');
  end if;
  select e.tenant_id into v_tenant_id from slides.events e
  where e.id = p_event_id and penstock.is_member(e.tenant_id);
  if not found then
    perform penstock.refuse(404, 'unknown_event', 'there is no such event', '{"field": "p_event_id"}');
  end if;
  perform penstock.require_member(v_tenant_id, '{owner,admin}');
  update slides.events set thumbnail_generation_enabled = p_enabled
  where tenant_id = v_tenant_id and id = p_event_id and thumbnail_generation_enabled <> p_enabled;
  return p_enabled;
end
$$;
comment on function slides.set_thumbnail_generation(uuid, boolean) is
  'Switches the generation of thumbnails for an event on or off. On also queues the slides that have none. '
  'Off keeps existing thumbnails; queued slides go back to none.';

create or replace function slides.toggle_event(p_event_id uuid)
returns boolean language sql security definer set search_path = slides, pg_temp as $$
  select slides.set_thumbnail_generation(p_event_id, not coalesce((select e.thumbnail_generation_enabled
    from slides.events e where e.id = p_event_id and penstock.is_member(e.tenant_id)), false))
$$;
comment on function slides.toggle_event(uuid) is
  'Switches the generation of an event on if it is off, and off if it is on.';

create or replace function slides.current_price()
returns numeric language sql stable security definer set search_path = slides, pg_temp as $$
  select coalesce((select min(p.amount) from penstock.price_list p
    where p.provider = penstock.get_setting('slides.provider') #>> '{}' and p.meter = 'thumbnails'
      and p.is_current and p.tenant_id is null), 0)
$$;
comment on function slides.current_price() is 'What a thumbnail of the chosen provider costs now.';

create or replace function slides.retry_event(p_event_id uuid)
returns integer language plpgsql security definer set search_path = slides, pg_temp as $$
declare
  v_tenant_id uuid;
  v_count integer := 0;
  v_slide_id uuid;
begin
  select e.tenant_id into v_tenant_id from slides.events e
  where e.id = p_event_id and penstock.is_member(e.tenant_id);
  if not found then
    perform penstock.refuse(404, 'unknown_event', 'there is no such event', '{"field": "p_event_id"}');
  end if;
  for v_slide_id in
    select s.id from slides.slides s where s.tenant_id = v_tenant_id and s.event_id = p_event_id
      and s.thumbnail_status = 'failed' order by s.id limit 500
  loop
    perform slides.retry_thumbnail(v_slide_id);
    v_count := v_count + 1;
  end loop;
  return v_count;
end
$$;
comment on function slides.retry_event(uuid) is
  'Queues up to 500 slides of an event whose thumbnails failed, and returns their number.';

create or replace function slides.select_slides(
  p_tenant_id uuid, p_event_id uuid, p_job_id uuid, p_limit integer default 500)
returns uuid[] language plpgsql security definer set search_path = slides, pg_temp as $$
declare
  v_ids uuid[];
begin
  if not exists (select from slides.events e where e.tenant_id = p_tenant_id and e.id = p_event_id
      and e.thumbnail_generation_enabled) then
    return '{}';
  end if;
  v_ids := array(select s.id from slides.slides s where s.tenant_id = p_tenant_id and s.event_id = p_event_id
    and s.thumbnail_status = 'none' order by s.id limit p_limit for update);
  update slides.slides s set thumbnail_status = 'pending', thumbnail_error = null, job_id = p_job_id,
    updated_at = penstock.clock()
  where s.tenant_id = p_tenant_id and s.id = any (v_ids);
  return v_ids;
end
$$;
comment on function slides.select_slides(uuid, uuid, uuid, integer) is
  'Takes the next slides of an event without a thumbnail for a retroactive job and returns them.';
