-- phase: expand
-- A hash chain over the audit log, made by upkeep: writers of lines never wait for each other.
create table penstock.audit_seals (
  number bigint primary key,
  last_id bigint not null,
  lines bigint not null check (lines >= 0),
  digest bytea not null,
  hash bytea not null,
  sealed_at timestamptz not null,
  pruned_at timestamptz
);
comment on table penstock.audit_seals is
  'Seals of the audit log: each covers the lines after the one before up to last_id, and hashes them together with '
  'the hash before. A changed, deleted, inserted or reordered line breaks the chain. See check_audit_log.';
comment on column penstock.audit_seals.pruned_at is
  'When retention removed the lines. The last such seal is where the chain begins.';

create table penstock.audit_marks (
  id boolean primary key default true check (id),
  last_id bigint not null,
  next_xid xid8 not null
);
comment on table penstock.audit_marks is
  'Up to which line the next seal may reach: once all transactions before next_xid have ended, no line up to '
  'last_id can appear any more.';

alter table penstock.audit_seals enable row level security;
alter table penstock.audit_marks enable row level security;
