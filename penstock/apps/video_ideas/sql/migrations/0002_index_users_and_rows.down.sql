drop index if exists penstock.video_ideas_jobs_user;
drop index if exists penstock.video_ideas_rows;
drop index if exists penstock.video_ideas_costs_user;
