create policy own_notes on bookshelf.notes for all to authenticated
  using (user_id = (select auth.uid())) with check (user_id = (select auth.uid()));
create policy members on bookshelf.loans for all to authenticated
  using (tenant_id in (select penstock.my_tenants()))
  with check (tenant_id in (select penstock.my_tenants()));
create policy members on bookshelf.visits for all to authenticated
  using (tenant_id in (select penstock.my_tenants()))
  with check (tenant_id in (select penstock.my_tenants()));
create policy members on bookshelf.jobs for select to authenticated
  using (tenant_id in (select penstock.my_tenants()));
create policy service_reads on bookshelf.notes for select to service_role using (true);
create policy service_reads on bookshelf.loans for select to service_role using (true);
create policy service_reads on bookshelf.jobs for select to service_role using (true);
create policy own_topics on bookshelf.topics for all to authenticated
  using (user_id = (select auth.uid())) with check (user_id = (select auth.uid()));
create policy service_reads on bookshelf.topics for select to service_role using (true);
create policy own_cards on bookshelf.cards for all to authenticated
  using (user_id = (select auth.uid())) with check (user_id = (select auth.uid()));
create policy service_reads on bookshelf.cards for select to service_role using (true);
