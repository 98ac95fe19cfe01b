-- phase: expand
-- Google Sheets and Google accounts belong to the tenant that used them first.
create table penstock.sheet_bindings (
  tenant_id uuid not null references penstock.tenants (id) on delete cascade,
  kind text not null check (kind in ('account', 'sheet')),
  name text not null check (length(name) between 1 and 200),
  label text check (length(label) <= 320),
  created_at timestamptz not null,
  primary key (tenant_id, kind, name),
  unique (kind, name)
);
comment on table penstock.sheet_bindings is
  'The tenant that a Google Sheet or a Google account serves. An account in the setting shared_sheet_accounts has no row.';
comment on column penstock.sheet_bindings.name is 'The id of the spreadsheet, or the anonymous id of the account.';
comment on column penstock.sheet_bindings.label is 'The e-mail address of the account, if known.';
alter table penstock.sheet_bindings enable row level security;

-- Sheets in use stay with the tenant that used them first.
insert into penstock.sheet_bindings (tenant_id, kind, name, created_at)
select distinct on (b.source ->> 'id') b.tenant_id, 'sheet', b.source ->> 'id', now()
from penstock.bulks b
where b.source ->> 'type' = 'google-sheets' and length(b.source ->> 'id') between 1 and 200
order by b.source ->> 'id', b.job_id;

-- Accounts in use may serve several tenants: they stay shared until the operator changes the setting.
insert into penstock.settings (name, value, comment)
select 'shared_sheet_accounts', coalesce(jsonb_agg(distinct split_part(e.name, ':', 2)), '[]'),
  'Google accounts (e-mail address or id) that serve several tenants. Others serve the tenant that used them first.'
from penstock.endpoints e where e.name like 'google-sheets/%:%' and e.tenant_id is null
on conflict (name) do nothing;
