create policy members_read on slides.events for select to authenticated
  using (tenant_id in (select penstock.my_tenants()));
create policy members_add on slides.events for insert to authenticated
  with check (penstock.is_member(tenant_id, '{owner,admin,member}'));
create policy admins_update_own_events on slides.events for update to authenticated
  using (penstock.is_member(tenant_id, '{owner,admin}'))
  with check (penstock.is_member(tenant_id, '{owner,admin}'));
create policy members_read on slides.sessions for select to authenticated
  using (tenant_id in (select penstock.my_tenants()));
create policy members_add on slides.sessions for insert to authenticated
  with check (penstock.is_member(tenant_id, '{owner,admin,member}'));
create policy members_update on slides.sessions for update to authenticated
  using (penstock.is_member(tenant_id, '{owner,admin,member}'))
  with check (penstock.is_member(tenant_id, '{owner,admin,member}'));
create policy admins_delete on slides.sessions for delete to authenticated
  using (penstock.is_member(tenant_id, '{owner,admin}'));
create policy members_read on slides.speeches for select to authenticated
  using (tenant_id in (select penstock.my_tenants()));
create policy members_add on slides.speeches for insert to authenticated
  with check (penstock.is_member(tenant_id, '{owner,admin,member}'));
create policy members_update on slides.speeches for update to authenticated
  using (penstock.is_member(tenant_id, '{owner,admin,member}'))
  with check (penstock.is_member(tenant_id, '{owner,admin,member}'));
create policy admins_delete on slides.speeches for delete to authenticated
  using (penstock.is_member(tenant_id, '{owner,admin}'));
create policy members_read on slides.slides for select to authenticated
  using (tenant_id in (select penstock.my_tenants()));
create policy service_reads on slides.events for select to service_role using (true);
create policy service_reads on slides.sessions for select to service_role using (true);
create policy service_reads on slides.speeches for select to service_role using (true);
create policy service_reads on slides.slides for select to service_role using (true);
create policy service_reads on slides.reservations for select to service_role using (true);
create policy service_adds on slides.events for insert to service_role with check (true);
create policy service_adds on slides.sessions for insert to service_role with check (true);
create policy service_adds on slides.speeches for insert to service_role with check (true);
