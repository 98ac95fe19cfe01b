drop table penstock.chores, penstock.dead_letters, penstock.attempts, penstock.results, penstock.leases,
  penstock.parked, penstock.ready, penstock.edges, penstock.tasks, penstock.phases, penstock.jobs,
  penstock.mixed, penstock.shares, penstock.lanes, penstock.job_types, penstock.kinds cascade;
drop sequence penstock.task_ids, penstock.lease_numbers;
drop type penstock.phase_delta, penstock.task_spec;
