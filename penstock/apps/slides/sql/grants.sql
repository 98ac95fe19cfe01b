revoke all on all tables in schema slides from public, anon, authenticated, service_role;
revoke all on all sequences in schema slides from public, anon, authenticated, service_role;
revoke all on all functions in schema slides from public, anon, authenticated, service_role;
grant usage on schema slides to authenticated, service_role;
grant select on slides.events, slides.sessions, slides.speeches, slides.slides, slides.tenants, slides.admins,
  slides.cloudconvert_jobs, slides.thumbnail_failure_log, slides.event_list, slides.slide_list
  to authenticated, service_role;
grant select on slides.reservations to service_role;
grant insert (tenant_id, id, name, starts_on), update (name, starts_on, thumbnail_generation_enabled)
  on slides.events to authenticated;
grant insert (tenant_id, id, event_id, title), update (title), delete on slides.sessions to authenticated;
grant insert (tenant_id, id, session_id, title), update (title), delete on slides.speeches to authenticated;
grant insert on slides.events, slides.sessions, slides.speeches, slides.thumbnail_failure_log to service_role;
-- For the view slides.tenants; it shows a tenant only to its members.
grant execute on function slides._quota(uuid) to authenticated, service_role;
grant execute on function slides.require_speech(uuid), slides.add_slide(uuid, uuid, text),
  slides.retry_thumbnail(uuid), slides.delete_slide(uuid), slides.set_thumbnail_generation(uuid, boolean),
  slides.toggle_event(uuid), slides.current_price(), slides.retry_event(uuid), slides.thumbnail_status(uuid)
  to authenticated, service_role;
grant execute on function slides.check_and_increment_thumbnail_quota(uuid, text),
  slides.rollback_thumbnail_quota(uuid, text), slides.purchase_thumbnail_quota(uuid, integer, text),
  slides.reset_thumbnail_quota(uuid, text), slides.select_slides(uuid, uuid, uuid, integer),
  slides._tasks(uuid[]), slides.begin_thumbnail(uuid, uuid, uuid),
  slides.finish_thumbnail(uuid, uuid, uuid, uuid), slides.settle_thumbnail(uuid, uuid, uuid),
  slides.sweep_thumbnails(integer) to service_role;
