revoke all on all tables in schema video_ideas from public, anon, authenticated, service_role;
revoke all on all functions in schema video_ideas from public, anon, authenticated, service_role;
grant usage on schema video_ideas to authenticated, service_role;
grant select on video_ideas.bulk_jobs, video_ideas.video_jobs, video_ideas.job_costs,
  video_ideas.provider_config, video_ideas.profiles, video_ideas.provider_costs, video_ideas.bulk_job_costs,
  video_ideas.provider_outcomes to authenticated, service_role;
grant update (display_name) on video_ideas.profiles to authenticated;
-- For the views.
grant execute on function video_ideas._uuid(text) to authenticated, service_role;
