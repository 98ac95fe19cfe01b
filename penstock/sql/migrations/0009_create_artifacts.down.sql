drop table penstock.artifacts cascade;
