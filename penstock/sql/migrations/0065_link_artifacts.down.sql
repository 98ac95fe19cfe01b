drop table penstock.link_secrets;
alter table penstock.artifacts drop column link, drop column link_until, drop column type, drop column metadata;
