drop table penstock.provider_keys;
