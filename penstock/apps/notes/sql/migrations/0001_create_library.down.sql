-- Usage, costs and files stay with Penstock; the app's tables go.
drop table notes.images, notes.wrapped_key_blobs, notes.profile_bios, notes.waitlist_requests,
  notes.collection_memberships, notes.collections, notes.lenses, notes.note_links, notes.custom_ideas,
  notes.notes, notes.books cascade;
select penstock.remove_gate(g.name) from penstock.gates g where g.comment like 'notes: %';
select penstock.set_plan(p.name, jsonb_build_object('limits',
  p.limits - array['managed_ai', 'custom_ideas', 'devices', 'image_bytes']))
from penstock.plans p where p.limits ? 'managed_ai';
