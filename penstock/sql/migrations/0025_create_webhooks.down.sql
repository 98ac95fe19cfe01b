drop table penstock.webhooks;
