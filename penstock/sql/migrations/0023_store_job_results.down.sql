alter table penstock.jobs drop column result;
