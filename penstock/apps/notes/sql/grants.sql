revoke all on all tables in schema notes from public, anon, authenticated, service_role;
revoke all on all sequences in schema notes from public, anon, authenticated, service_role;
revoke all on all functions in schema notes from public, anon, authenticated, service_role;
grant usage on schema notes to authenticated, service_role;
-- By column: change_seq is the server's. Tombstones are readable, so that devices can pull them.
grant select, delete on notes.books, notes.notes, notes.custom_ideas, notes.note_links, notes.lenses,
  notes.collections, notes.collection_memberships, notes.wrapped_key_blobs to authenticated;
grant insert (user_id, id, title, author, isbn, cover_url, cover_source, cover_resolved_at, created_at,
  updated_at, deleted), update (user_id, id, title, author, isbn, cover_url, cover_source, cover_resolved_at,
  created_at, updated_at, deleted) on notes.books to authenticated;
grant insert (user_id, id, book_id, text, page, chapter, tags, image_path, source, source_id, source_meta,
  created_at, updated_at, deleted),
  update (user_id, id, book_id, text, page, chapter, tags, image_path, source, source_id, source_meta,
  created_at, updated_at, deleted) on notes.notes to authenticated;
grant insert (user_id, id, name, description, created_at, updated_at, deleted),
  update (user_id, id, name, description, created_at, updated_at, deleted)
  on notes.custom_ideas to authenticated;
grant insert (user_id, id, from_note_id, to_note_id, relation_type, created_at, updated_at, deleted),
  update (user_id, id, from_note_id, to_note_id, relation_type, created_at, updated_at, deleted)
  on notes.note_links to authenticated;
grant insert (user_id, id, name, leaf_ids, combinator, created_at, updated_at, deleted),
  update (user_id, id, name, leaf_ids, combinator, created_at, updated_at, deleted)
  on notes.lenses to authenticated;
grant insert (user_id, id, name, created_at, updated_at, deleted),
  update (user_id, id, name, created_at, updated_at, deleted) on notes.collections to authenticated;
grant insert (user_id, id, note_id, collection_id, created_at, updated_at, deleted),
  update (user_id, id, note_id, collection_id, created_at, updated_at, deleted)
  on notes.collection_memberships to authenticated;
grant insert (user_id, id, type, blob, is_active, device_label), update (is_active)
  on notes.wrapped_key_blobs to authenticated;
grant select, insert, update, delete on notes.books, notes.notes, notes.custom_ideas, notes.note_links,
  notes.lenses, notes.collections, notes.collection_memberships, notes.wrapped_key_blobs,
  notes.waitlist_requests to service_role;
grant select on notes.images to service_role;

grant select on notes.user_profiles, notes.ai_usage_daily, notes.orphans, notes.book_list, notes.note_list,
  notes.device_list, notes.idea_list to authenticated, service_role;
grant update (display_name, profile_bio) on notes.user_profiles to authenticated;
grant update (display_name, profile_bio, month_limit, allocation_override, allocation_override_expires_at,
  user_tier, role) on notes.user_profiles to service_role;
grant select on notes.ai_usage_events, notes.stripe_webhook_events, notes.admin_audit_log, notes.prompts,
  notes.fixed_costs, notes.cost_snapshot to service_role;
grant insert (action, subject, details, tenant_id) on notes.admin_audit_log to service_role;
grant insert (name, body, model, max_tokens, comment, is_active), update (is_active) on notes.prompts
  to service_role;

-- For the view user_profiles, which shows a profile only to its user.
grant execute on function notes._profile_facts(uuid, uuid) to authenticated, service_role;
grant execute on function notes.rename_custom_idea(text, text), notes.lens_notes(text),
  notes.collection_notes(text), notes.idea_pairs(), notes.select_fresh_transfer_blob(uuid, bigint),
  notes.my_entitlements(), notes.require_note(text), notes.find_image(text), notes.start_sync(uuid)
  to authenticated, service_role;
grant execute on function notes.hard_delete_note(uuid, text), notes.begin_call(uuid, text, text),
  notes.end_call(uuid, uuid, text, text, jsonb, jsonb), notes.insert_ai_usage_event(uuid, text, text, jsonb),
  notes.upsert_ai_usage(uuid, text, date, bigint, bigint), notes.adjust_image_storage_bytes(uuid, bigint),
  notes.add_image(uuid, text, uuid), notes.delete_old_images(integer), notes.texts_to_discover(uuid, text[]),
  notes.custom_idea_names(uuid), notes.apply_ideas(uuid, text, text[]), notes.remove_idea(uuid, text, text),
  notes.approve_waitlist(text) to service_role;
