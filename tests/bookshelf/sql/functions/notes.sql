create or replace function bookshelf.skip_stale()
returns trigger language plpgsql security definer set search_path = bookshelf, pg_temp as $$
begin
  return case when new.updated_at < old.updated_at then null else new end;
end
$$;
create or replace trigger skip_stale before update on bookshelf.notes
  for each row execute function bookshelf.skip_stale();

create or replace function bookshelf.count_notes(p_title text default null)
returns bigint language sql stable security definer set search_path = bookshelf, pg_temp as $$
  select count(*) from bookshelf.notes where user_id = auth.uid() and (p_title is null or title = p_title)
$$;

create or replace function bookshelf.next_page(p_worker_id text)
returns text language sql security definer set search_path = bookshelf, pg_temp as $$
  select 'page for ' || p_worker_id
$$;

create or replace function bookshelf.finish_page(p_lease bigint default null)
returns bigint language sql security definer set search_path = bookshelf, pg_temp as $$ select p_lease $$;

-- The same name as a function of Penstock.
create or replace function bookshelf.pulse()
returns text language sql stable security definer set search_path = bookshelf, pg_temp as $$
  select 'bookshelf'
$$;

create or replace function bookshelf.return_book(p_loan_id bigint, p_reason text default null)
returns text language plpgsql security definer set search_path = bookshelf, pg_temp as $$
declare
  v_tenant_id uuid;
begin
  select tenant_id into v_tenant_id from bookshelf.loans
    where id = p_loan_id and penstock.is_member(tenant_id) for update;
  if not found then
    perform penstock.refuse(404, 'unknown_loan', 'there is no such loan');
  end if;
  perform penstock.require_member(v_tenant_id);
  update bookshelf.loans set status = 'returned' where tenant_id = v_tenant_id and id = p_loan_id;
  perform penstock.record_audit('bookshelf.returned', 'loan:' || p_loan_id, '{}', v_tenant_id);
  return 'returned';
end
$$;
