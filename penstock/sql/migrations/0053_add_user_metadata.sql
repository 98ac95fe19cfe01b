-- phase: expand
-- The authentication service has this column. Where Penstock made the table, it gets it, too.
do $$
begin
  if not exists (select from information_schema.columns where table_schema = 'auth' and table_name = 'users'
      and column_name = 'raw_user_meta_data') then
    alter table auth.users add column raw_user_meta_data jsonb;
  end if;
end
$$;
