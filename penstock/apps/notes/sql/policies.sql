create policy own_books on notes.books for all to authenticated
  using (user_id = (select auth.uid())) with check (user_id = (select auth.uid()));
create policy own_notes on notes.notes for all to authenticated
  using (user_id = (select auth.uid())) with check (user_id = (select auth.uid()));
create policy own_custom_ideas on notes.custom_ideas for all to authenticated
  using (user_id = (select auth.uid())) with check (user_id = (select auth.uid()));
create policy own_note_links on notes.note_links for all to authenticated
  using (user_id = (select auth.uid())) with check (user_id = (select auth.uid()));
create policy own_lenses on notes.lenses for all to authenticated
  using (user_id = (select auth.uid())) with check (user_id = (select auth.uid()));
create policy own_collections on notes.collections for all to authenticated
  using (user_id = (select auth.uid())) with check (user_id = (select auth.uid()));
create policy own_collection_memberships on notes.collection_memberships for all to authenticated
  using (user_id = (select auth.uid())) with check (user_id = (select auth.uid()));
create policy own_wrapped_key_blobs on notes.wrapped_key_blobs for all to authenticated
  using (user_id = (select auth.uid())) with check (user_id = (select auth.uid()));
create policy service_all on notes.books for all to service_role using (true) with check (true);
create policy service_all on notes.notes for all to service_role using (true) with check (true);
create policy service_all on notes.custom_ideas for all to service_role using (true) with check (true);
create policy service_all on notes.note_links for all to service_role using (true) with check (true);
create policy service_all on notes.lenses for all to service_role using (true) with check (true);
create policy service_all on notes.collections for all to service_role using (true) with check (true);
create policy service_all on notes.collection_memberships for all to service_role
  using (true) with check (true);
create policy service_all on notes.wrapped_key_blobs for all to service_role using (true) with check (true);
create policy service_all on notes.waitlist_requests for all to service_role using (true) with check (true);
create policy service_reads on notes.images for select to service_role using (true);
