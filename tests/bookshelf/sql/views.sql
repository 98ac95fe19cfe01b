create or replace view bookshelf.loan_list with (security_invoker = true) as
select l.tenant_id, l.id, l.book, l.status from bookshelf.loans l;
