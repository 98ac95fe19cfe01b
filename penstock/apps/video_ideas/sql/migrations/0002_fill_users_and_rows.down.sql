-- Nothing reads these values then.
select 1;
