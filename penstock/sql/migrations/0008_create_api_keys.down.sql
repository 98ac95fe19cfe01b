-- Without their keys these members are nobody.
delete from penstock.members m using penstock.api_keys k where k.id = m.user_id and k.tenant_id is not null;
delete from penstock.profiles p using penstock.api_keys k where k.id = p.user_id;
drop table penstock.requests, penstock.api_keys cascade;
