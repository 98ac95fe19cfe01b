alter table penstock.endpoints drop column hosts;
