drop table penstock.sessions cascade;
