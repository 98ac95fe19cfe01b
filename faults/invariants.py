"""What must hold of the engine's tables between any two transactions, as queries that return what does not."""

from __future__ import annotations

INVARIANTS = {
    "a task is in exactly one of ready, parked, leases, results; of a canceled job, in at most one": """
        select t.job_id, t.id, j.status, array_agg(x.place) as places
        from penstock.tasks t join penstock.jobs j on j.id = t.job_id
        left join (
          select 'ready' as place, task_id from penstock.ready union all
          select 'parked', task_id from penstock.parked union all
          select 'leases', task_id from penstock.leases union all
          select 'results', task_id from penstock.results) as x on x.task_id = t.id
        group by t.job_id, t.id, j.status
        having count(x.place) > 1 or count(x.place) = 0 and j.status <> 'canceled'""",
    "the counts of a phase are the truth": """
        select p.* from penstock.phases p
        left join (
          select t.job_id, t.phase, count(*) as total,
            count(*) filter (where r.outcome = 'succeeded') as succeeded,
            count(*) filter (where r.outcome = 'failed') as failed,
            count(*) filter (where r.outcome = 'canceled') as canceled
          from penstock.tasks t left join penstock.results r on r.job_id = t.job_id and r.task_id = t.id
          group by t.job_id, t.phase) as c on c.job_id = p.job_id and c.phase = p.position
        where (p.total, p.succeeded, p.failed, p.canceled) is distinct from
          (coalesce(c.total, 0), coalesce(c.succeeded, 0), coalesce(c.failed, 0), coalesce(c.canceled, 0))""",
    "a blocked task waits for as many parents as have not ended": """
        select p.job_id, p.task_id, p.pending, n from penstock.parked p join penstock.jobs j on j.id = p.job_id
        cross join lateral (
          select count(*) as n from penstock.edges e where e.job_id = p.job_id and e.child_id = p.task_id
            and not exists (select from penstock.results r where r.job_id = e.job_id and r.task_id = e.parent_id)) as c
        where p.pending > 0 and p.pending <> n and j.status <> 'canceled'""",
    "a task that runs has parents that ended": """
        select x.* from (
          select job_id, task_id from penstock.leases where not is_canceled union all
          select job_id, task_id from penstock.results where outcome <> 'canceled') as x
        join penstock.edges e on e.job_id = x.job_id and e.child_id = x.task_id
        join penstock.tasks t on t.job_id = x.job_id and t.id = x.task_id
        left join penstock.results r on r.job_id = e.job_id and r.task_id = e.parent_id
        where not t.run_after_failure and r.outcome is distinct from 'succeeded'""",
    "a task knows that it has children": """
        select x.* from (
          select job_id, task_id, has_children from penstock.ready union all
          select job_id, task_id, has_children from penstock.parked union all
          select job_id, task_id, has_children from penstock.leases) as x
        where not has_children
          and exists (select from penstock.edges e where e.job_id = x.job_id and e.parent_id = x.task_id)""",
    "a job ends when its last task does": """
        select j.id, j.status, p.* from penstock.jobs j join (
          select job_id, sum(total) as total, sum(succeeded + failed + canceled) as ended, sum(failed) as failed
          from penstock.phases group by job_id) as p on p.job_id = j.id
        where j.status in ('queued', 'running', 'paused') and p.total > 0 and p.ended = p.total
          or j.status = 'completed' and (p.ended < p.total or p.failed > 0)
          or j.status = 'failed' and p.failed = 0""",
    "nothing waits for a pause that is over": """
        select p.job_id, p.task_id, p.reason, j.status from penstock.parked p join penstock.jobs j on j.id = p.job_id
        where p.until = 'infinity' and p.waits_for is null and p.wait_id is null and j.status in ('queued', 'running')
          and not exists (select from penstock.chores c where c.job_id = j.id)""",
    "a waiting task has a wait that is open": """
        select p.job_id, p.task_id, p.wait_id, w.outcome from penstock.parked p
        left join penstock.waits w on w.id = p.wait_id left join penstock.operations o on o.id = p.wait_id
        where p.wait_id is not null and (w.id is null or w.outcome is not null)
          and (o.id is null or o.status not in ('pending', 'processing', 'canceled', 'timeout'))""",
    "a failed task has a letter, and a letter a failed task": """
        select r.job_id, r.task_id, d.id from (select * from penstock.results where outcome = 'failed') as r
        full join penstock.dead_letters d on d.job_id = r.job_id and d.task_id = r.task_id
        where d.id is null and not exists (
            select from penstock.audit_log a where a.action = 'dead_letter.discarded' and a.job_id = r.job_id)
          or r.task_id is null""",
    "nothing is left of a job that is gone": """
        select x.* from (
          select 'tasks' as place, job_id, id from penstock.tasks union all
          select 'ready', job_id, task_id from penstock.ready union all
          select 'parked', job_id, task_id from penstock.parked union all
          select 'leases', job_id, task_id from penstock.leases union all
          select 'results', job_id, task_id from penstock.results) as x
        where not exists (select from penstock.jobs j where j.id = x.job_id)""",
}
