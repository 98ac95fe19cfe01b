-- phase: expand
-- The trace that a job belongs to, so that attempts of its tasks can be linked to the span that started it.

alter table penstock.jobs add column traceparent text;
comment on column penstock.jobs.traceparent is
  'W3C trace context of the span that started the job (null: it was not traced).';
