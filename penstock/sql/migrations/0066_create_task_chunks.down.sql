drop table penstock.task_chunks;
