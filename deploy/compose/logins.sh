#!/bin/sh
# Runs once, when the database is created: the roles of Penstock, and the logins of the API and of workers. The
# passwords come from the environment and reach psql as variables, never as text of a statement.
set -eu
psql --no-psqlrc --set=ON_ERROR_STOP=1 --username="$POSTGRES_USER" --dbname="$POSTGRES_DB" \
  --set=api_password="$PENSTOCK_API_PASSWORD" --set=worker_password="$PENSTOCK_WORKER_PASSWORD" <<'SQL'
create role anon nologin noinherit;
create role authenticated nologin noinherit;
create role service_role nologin noinherit bypassrls;
create role penstock_api login noinherit password :'api_password' in role anon, authenticated;
create role penstock_worker login inherit password :'worker_password' in role service_role;
SQL
