revoke all on all tables in schema bookshelf from public, anon, authenticated, service_role;
revoke all on all functions in schema bookshelf from public, anon, authenticated, service_role;
grant usage on schema bookshelf to authenticated, service_role;
grant select on bookshelf.notes, bookshelf.loan_list, bookshelf.visits, bookshelf.jobs,
  bookshelf.file_list to authenticated, service_role;
grant insert (user_id, id, title, tags, data, score, short, "odd ""name%", updated_at),
  update (title, tags, data, score, short, "odd ""name%", updated_at), delete
  on bookshelf.notes to authenticated;
grant select (tenant_id, id, book, status), insert (tenant_id, book, secret), update (status), delete
  on bookshelf.loans to authenticated;
grant select, insert on bookshelf.loans to service_role;
grant insert on bookshelf.visits to authenticated;
grant execute on function bookshelf.count_notes(text), bookshelf.return_book(bigint, text) to authenticated,
  service_role;
grant execute on function bookshelf.next_page(text), bookshelf.finish_page(bigint), bookshelf.pulse()
  to service_role;
grant select, delete on bookshelf.topics, bookshelf.cards to authenticated;
grant insert (user_id, id, name, updated_at, deleted), update (name, updated_at, deleted) on bookshelf.topics
  to authenticated;
grant insert (user_id, id, topic_id, body, tags, updated_at, deleted),
  update (topic_id, body, tags, updated_at, deleted) on bookshelf.cards to authenticated;
grant select, insert, update, delete on bookshelf.topics, bookshelf.cards to service_role;
