update penstock.attempts a set error_details = coalesce(a.error_details, '{}') || jsonb_build_object('stack', s.stack)
from penstock.error_stacks s where s.job_id = a.job_id and s.task_id = a.task_id and s.lease = a.lease;
drop table penstock.error_stacks;
