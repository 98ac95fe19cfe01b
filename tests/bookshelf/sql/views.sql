create or replace view bookshelf.loan_list with (security_invoker = true) as
select l.tenant_id, l.id, l.book, l.status from bookshelf.loans l;
create or replace view bookshelf.file_list with (security_invoker = true) as
select a.tenant_id, a.id as file_id, a.name, a.stored_at from penstock.artifacts a;
