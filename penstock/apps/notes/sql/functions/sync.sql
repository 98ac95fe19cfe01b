-- The synced tables of the library. migrate calls this again when a trigger of them is missing.

select penstock.make_synced(t.name, t.position) from (values ('notes.books'::regclass, 1), ('notes.notes', 2),
  ('notes.custom_ideas', 3), ('notes.note_links', 4), ('notes.lenses', 5), ('notes.collections', 6),
  ('notes.collection_memberships', 7)) as t(name, position);
select penstock.cascade_deletes(c.parent, c.child, c.col) from (values
  ('notes.books'::regclass, 'notes.notes'::regclass, 'book_id'),
  ('notes.notes', 'notes.note_links', 'from_note_id'), ('notes.notes', 'notes.note_links', 'to_note_id'),
  ('notes.notes', 'notes.collection_memberships', 'note_id'),
  ('notes.collections', 'notes.collection_memberships', 'collection_id')) as c(parent, child, col);
