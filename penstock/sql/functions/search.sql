-- Search: the titles of jobs, the terms by which jobs are found, and the function that finds them.

create or replace function penstock._job_title(p_template text, p_params jsonb)
returns text language plpgsql immutable set search_path = penstock, pg_temp as $$
declare
  v_title text := p_template;
  v_path text;
begin
  for v_path in select distinct m[1] from regexp_matches(p_template, '\{([A-Za-z0-9_.]{1,100})\}', 'g') as m
  loop
    v_title := replace(v_title, '{' || v_path || '}',
      left(coalesce(p_params #>> string_to_array(v_path, '.'), ''), 200));
  end loop;
  return nullif(left(trim(regexp_replace(v_title, '[[:cntrl:][:space:]]+', ' ', 'g')), 200), '');
end
$$;
comment on function penstock._job_title(text, jsonb) is
  'The title of a job: {name} and {name.name} in the template stand for its params. Null if nothing is left.';

create or replace function penstock._search_words(p_text text)
returns text[] language sql immutable set search_path = penstock, pg_temp as $$
  -- Splits at ASCII only, so that the words do not depend on the collation of the database.
  select coalesce(array_agg(w order by n), '{}') from (
    select w, min(n) as n from regexp_split_to_table(lower(left(p_text, 2000)), '[[:space:]!-/:-@\[-`{-~]+')
      with ordinality as x(w, n)
    where length(w) between 2 and 40 group by w order by min(n) limit 40) as words
$$;
comment on function penstock._search_words(text) is 'The first 40 words of a text in lower case.';

create or replace function penstock._searchable_params(p_params jsonb)
returns table (path text, value text) language sql immutable set search_path = penstock, pg_temp as $$
  with top as (
    select key, value from jsonb_each(p_params) limit 50
  ), scalars as (
    select t.key as path, t.value from top t where jsonb_typeof(t.value) not in ('object', 'array', 'null')
    union all
    select t.key || '.' || e.key, e.value
    from top t cross join lateral (
      select o.key, o.value from jsonb_each(case when jsonb_typeof(t.value) = 'object' then t.value
        else '{}' end) as o limit 50) as e
    where jsonb_typeof(e.value) not in ('object', 'array', 'null')
    union all
    select t.key, e.value
    from top t cross join lateral (
      select a.value from jsonb_array_elements(case when jsonb_typeof(t.value) = 'array' then t.value
        else '[]' end) as a limit 20) as e
    where jsonb_typeof(e.value) not in ('object', 'array', 'null')
  )
  select lower(left(s.path, 100)), s.value #>> '{}' from scalars s
  where s.path !~* 'pass(word|wd|phrase)|secret|token|api_?key|authorization|credential|private_?key|cookie'
  limit 30
$$;
comment on function penstock._searchable_params(jsonb) is
  'The params by which a job can be found: texts, numbers and booleans of the first two levels and of lists, '
  'at most 30, without those whose name says that they are secret.';

create or replace function penstock._index_job(p_job penstock.jobs)
returns void language sql set search_path = penstock, pg_temp as $$
  with params as (
    select path, value from _searchable_params(p_job.params)
  ), words as (
    select unnest(_search_words(concat_ws(' ', p_job.title,
      (select string_agg(left(value, 200), ' ') from params)))) as word
  )
  insert into job_terms (tenant_id, term, job_id)
  select distinct p_job.tenant_id, x.term, p_job.id from (
    select 'tag=' || tag as term from unnest(p_job.tags) as tag
    union all select 'params.' || path || '=' || lower(left(value, 100)) from params
    union all select 'text=' || word from words
  ) as x
$$;
comment on function penstock._index_job(penstock.jobs) is 'Stores the terms by which a new job is found.';

create or replace function penstock._check_tags(p_tags jsonb)
returns text[] language plpgsql immutable set search_path = penstock, pg_temp as $$
declare
  v_tags text[];
begin
  if jsonb_typeof(p_tags) = 'null' or p_tags is null then
    return '{}';
  end if;
  if jsonb_typeof(p_tags) = 'array' and jsonb_array_length(p_tags) <= 10 then
    select coalesce(array_agg(distinct lower(e #>> '{}')), '{}') into v_tags
    from jsonb_array_elements(p_tags) as e
    where jsonb_typeof(e) = 'string' and length(e #>> '{}') between 1 and 50 and _is_clean(e #>> '{}');
  end if;
  if v_tags is null or cardinality(v_tags) < (
    select count(distinct lower(e #>> '{}')) from jsonb_array_elements(p_tags) as e
  ) then
    perform _refuse(422, 'invalid_options',
      format('tags must be up to 10 texts of 1 to 50 characters (got %s)', left(p_tags::text, 100)),
      '{"field": "options.tags"}');
  end if;
  return v_tags;
end
$$;
comment on function penstock._check_tags(jsonb) is 'Reads the tags of a new job, in lower case.';

create or replace function penstock.find_jobs(p_field text, p_values text[])
returns setof uuid language plpgsql stable security definer set search_path = penstock, pg_temp
  set enable_seqscan = off set jit = off as $$
declare
  v_tenants uuid[] := case when _is_service() then array(select id from tenants)
    else array(select my_tenants()) end;
  -- The newest jobs of each tenant: 10,000 in all, or 100 for each tenant if that is more.
  v_most integer := greatest(100, 10000 / greatest(1, cardinality(v_tenants)));
begin
  return query
  select distinct found.job_id
  from unnest(p_values[1:20]) as v(value)
  cross join lateral (
    select case when p_field = 'text' then array(select 'text=' || w from unnest(_search_words(v.value)) as w)
      else array[lower(p_field) || '=' || lower(left(v.value, 100))] end as terms
  ) as s
  cross join unnest(v_tenants) as t(tenant_id)
  cross join lateral (
    select newest.job_id from (
      select j.job_id from job_terms j where j.tenant_id = t.tenant_id and j.term = s.terms[1]
      order by j.job_id desc limit v_most
    ) as newest
    where not exists (
      select from unnest(s.terms[2:10]) as o(term) where not exists (
        select from job_terms k
        where k.tenant_id = t.tenant_id and k.term = o.term and k.job_id = newest.job_id))
  ) as found;
end
$$;
comment on function penstock.find_jobs(text, text[]) is
  'The newest jobs, of the tenants that the caller may read, that have one of these values as a tag (p_field '
  'tag), as a param (params.NAME) or with all its words in the title or in params (text). Reads at most '
  '10,000 terms, or 100 per tenant, from the index of each tenant.';
