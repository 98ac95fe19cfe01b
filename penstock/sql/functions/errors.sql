-- Errors, and the checks that several functions share.
--
-- An error has an SQLSTATE made of PT and the HTTP status (PostgREST responds with that status), a message
-- for people, a detail object with a stable code for programs, and a hint that says what to do.

create or replace function penstock._refuse(
  p_status integer, p_code text, p_message text, p_fields jsonb default '{}', p_hint text default null)
returns void language plpgsql set search_path = penstock, pg_temp as $$
begin
  raise exception using
    errcode = 'PT' || p_status,
    message = p_message,
    detail = jsonb_build_object('code', p_code) || p_fields,
    hint = coalesce(p_hint, '');
end
$$;
comment on function penstock._refuse(integer, text, text, jsonb, text) is
  'Raises an error with a status, a stable code, a message, detail fields and a hint.';

-- JSON parsers of other languages fail on more than 64 levels of nesting and on numbers beyond 1e308: one
-- such output would stop every worker that receives it. A document of up to 128 bytes can contain neither.
create or replace function penstock._is_readable(p_document jsonb)
returns boolean language sql immutable set search_path = penstock, pg_temp as $$
  select not jsonb_path_exists(p_document, '$.**{65}')
    and not jsonb_path_exists(p_document, '$.** ? (@ > 1e308 || @ < -1e308)')
$$;
comment on function penstock._is_readable(jsonb) is 'Whether common JSON parsers can read this document.';

create or replace function penstock._check_fields(p_values jsonb, p_names text[], p_what text)
returns void language plpgsql stable set search_path = penstock, pg_temp as $$
declare
  v_unknown text;
begin
  if jsonb_typeof(p_values) is distinct from 'object' then
    perform _refuse(422, 'invalid_options', format('%s options must be a JSON object (got %s)', p_what,
      coalesce(jsonb_typeof(p_values), 'null')));
  end if;
  select k into v_unknown from jsonb_object_keys(p_values) as k where k <> all (p_names);
  if found then
    perform _refuse(422, 'unknown_field', format('unknown %s field %L', p_what, left(v_unknown, 100)),
      jsonb_build_object('field', left(v_unknown, 100)), 'Known fields: ' || array_to_string(p_names, ', ')
        || '.');
  end if;
end
$$;
comment on function penstock._check_fields(jsonb, text[], text) is
  'Raises an error unless the value is an object that has only these fields.';

create or replace function penstock._check_document(p_document jsonb, p_name text, p_limit integer)
returns void language plpgsql set search_path = penstock, pg_temp as $$
declare
  v_size integer := octet_length(p_document::text);
begin
  if v_size > p_limit then
    perform _refuse(413, 'too_large', format('%s is %s bytes; the limit is %s', p_name, v_size, p_limit),
      jsonb_build_object('field', p_name, 'bytes', v_size, 'limit', p_limit),
      'Keep files in object storage and pass their path.');
  end if;
  if v_size > 128 and not _is_readable(p_document) then
    perform _refuse(422, 'unreadable',
      format('%s must be nested at most 64 levels deep, with numbers within ±1e308', p_name),
      jsonb_build_object('field', p_name));
  end if;
end
$$;
comment on function penstock._check_document(jsonb, text, integer) is
  'Raises an error for a JSON document that is too large or that common JSON parsers cannot read.';

-- Other languages cannot represent infinity or the year 20000:
-- one such row would break every list that contains it.
create or replace function penstock._is_storable_time(p_at timestamptz)
returns boolean language sql immutable set search_path = penstock, pg_temp as $$
  select p_at >= '2000-01-01 00:00:00+00' and p_at < '9999-01-01 00:00:00+00'
$$;
comment on function penstock._is_storable_time(timestamptz) is
  'Whether a time lies in the years 2000 to 9998, which every client language can represent.';

create or replace function penstock._check_time(p_at timestamptz, p_field text)
returns void language plpgsql stable set search_path = penstock, pg_temp as $$
begin
  if not _is_storable_time(p_at) then
    perform _refuse(422, 'invalid_time',
      format('%s must be in the years 2000 to 9998 (got %s)', p_field, p_at),
      jsonb_build_object('field', p_field));
  end if;
end
$$;
comment on function penstock._check_time(timestamptz, text) is
  'Raises an error for a time outside the years 2000 to 9998; null passes.';

-- Errors of handlers quote what the handler used: requests with their headers, URLs, connection strings. The
-- patterns never take a quote or a backslash, so that a JSON document stays one after its text was redacted.
create or replace function penstock._redact(p_text text)
returns text language plpgsql immutable set search_path = penstock, pg_temp as $$
declare
  c_hidden constant text := '[redacted]';
  -- A name, its closing quote, a separator, and the opening quote of its value.
  c_is constant text := $r$["'\\]*[ \t]*(?:=>?|:)[ \t]*[["'\\(]*$r$;
  v_text text := p_text;
begin
  -- Each pattern below needs one of these. Most errors contain none, and the patterns cost more.
  if v_text is null or v_text !~* ('://|key|token|secret|passw|passphrase|pwd|authorization|cookie|bearer'
    || '|basic|credential|signature|[sr]k[-_]|ps[ski]_|whsec_|eyJ|AKIA|gh[pousr]_|github_pat_|xox|AIza|ya29'
    || '|private') then
    return v_text;
  end if;
  v_text := regexp_replace(v_text, '-----BEGIN[^-]*?PRIVATE KEY-----.*?-----END[^-]*?-----', c_hidden, 'g');
  -- User and password, and the query string, of a URL or connection string.
  v_text := regexp_replace(v_text, $r$(\w://)[^\s"'\\/@?#:]*:[^\s"'\\?#]*@$r$, '\1' || c_hidden || '@', 'g');
  v_text := regexp_replace(v_text, $r$(\w://[^\s"'\\<>?#]*[?#])[^\s"'\\<>]+$r$, '\1' || c_hidden, 'g');
  v_text := regexp_replace(v_text, $r$((?:proxy-)?authorization|(?:set-)?cookie|x-[a-z-]*(?:key|token))($r$
    || c_is || $r$)[^"'\\\r\n,}]+$r$, '\1\2' || c_hidden, 'gi');
  v_text := regexp_replace(v_text, $r$\m(bearer|basic)([ \t]+)[\w.~+/=-]{8,}$r$, '\1\2' || c_hidden, 'gi');
  v_text := regexp_replace(v_text, $r$(passw(?:or)?d|passphrase|pwd|secret|token|credentials?|signature|$r$
    || $r$(?:api|access|private|secret|signing|encryption|account|storage|auth)[_-]?key)($r$ || c_is
    || $r$)(?!\[redacted|[:=[{]|true\M|false\M|null\M|None\M|[0-9.]+\M)[^\s"'\\,;&)}\]<>]+$r$,
    '\1\2' || c_hidden, 'gi');
  -- Credentials that their form gives away, whatever stands before them.
  return regexp_replace(v_text, $r$\m(?:ps[kis]_[0-9a-f]{16,}|[sr]k[-_][\w-]{12,}|whsec_[\w+/=-]{12,}|$r$
    || $r$AKIA[0-9A-Z]{16}|gh[pousr]_\w{20,}|github_pat_\w{20,}|xox[a-z]-[\w-]{10,}|AIza[\w-]{30,}|$r$
    || $r$ya29\.[\w-]{10,}|eyJ[\w-]{5,}\.[\w-]{5,}(?:\.[\w-]*)?)$r$, c_hidden, 'g');
end
$$;
comment on function penstock._redact(text) is
  'Replaces credentials by [redacted]: keys, tokens, passwords, Authorization headers and cookies, the '
  'password and the query string of URLs and connection strings.';

create or replace function penstock._error_text(p_text text, p_limit integer)
returns text language sql immutable set search_path = penstock, pg_temp as $$
  -- Cut twice: a text of megabytes is not searched, and the first cut leaves no half of a secret in the text.
  select left(_redact(left(p_text, p_limit + 1000)), p_limit)
$$;
comment on function penstock._error_text(text, integer) is
  'The text of an error or report as it is stored: without credentials, and at most p_limit characters.';

create or replace function penstock._redact_document(p_document jsonb)
returns jsonb language plpgsql immutable set search_path = penstock, pg_temp as $$
begin
  return _redact(p_document::text)::jsonb;
exception when invalid_text_representation then
  return '{"dropped": "not redactable"}';
end
$$;
comment on function penstock._redact_document(jsonb) is
  'Redacts the texts of a JSON document; drops a document that would be no JSON afterwards.';

-- A line break in a name forges lines of logs; other control characters change what a terminal shows.
create or replace function penstock._is_clean(p_text text)
returns boolean language sql immutable set search_path = penstock, pg_temp as $$
  select p_text !~ '[\u0001-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]'
$$;
comment on function penstock._is_clean(text) is
  'Whether a text has no control characters, line separators or marks that change its direction.';

create or replace function penstock._check_clean(p_text text, p_field text, p_code text)
returns void language plpgsql stable set search_path = penstock, pg_temp as $$
begin
  if not _is_clean(p_text) then
    perform _refuse(422, p_code, format('%s must not contain control characters (got %s)', p_field,
      left(to_json(p_text)::text, 100)), jsonb_build_object('field', p_field));
  end if;
end
$$;
comment on function penstock._check_clean(text, text, text) is
  'Raises an error if a text has control characters; null has none.';

create or replace function penstock._check_name(p_name text, p_field text, p_code text default 'invalid_name')
returns void language plpgsql stable set search_path = penstock, pg_temp as $$
begin
  if coalesce(length(p_name), 0) not between 1 and 200 then
    perform _refuse(422, p_code,
      format('%s must have 1 to 200 characters (got %s)', p_field, coalesce(length(p_name), 0)),
      jsonb_build_object('field', p_field));
  end if;
  perform _check_clean(p_name, p_field, p_code);
end
$$;
comment on function penstock._check_name(text, text, text) is
  'Raises an error unless a name has 1 to 200 characters and no control characters.';
