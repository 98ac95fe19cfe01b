alter table penstock.jobs drop column traceparent;
