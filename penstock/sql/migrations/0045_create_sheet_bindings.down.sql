delete from penstock.settings where name = 'shared_sheet_accounts';
drop table penstock.sheet_bindings;
