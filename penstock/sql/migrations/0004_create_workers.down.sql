drop table penstock.schedules, penstock.workers cascade;
