drop table penstock.operations;
