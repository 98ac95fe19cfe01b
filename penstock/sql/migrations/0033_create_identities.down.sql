drop table penstock.identities cascade;
