alter table penstock.artifacts drop column subject, drop column kept_until;
