drop table penstock.task_logs;
drop sequence penstock.task_log_ids;
