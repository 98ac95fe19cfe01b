-- The column may be the authentication service's own, so it stays.
select 1;
