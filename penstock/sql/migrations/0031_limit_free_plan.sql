-- phase: expand
-- The free plan limits jobs, rows and stored input, unless an operator has changed it.

update penstock.plans set limits = limits || '{"jobs": 10000, "rows": 100000, "input_bytes": 104857600}'
where name = 'free' and limits = '{"files": 10, "pages": 100, "tokens": 50000, "bytes": 104857600}';
update penstock.settings set value = '"unlimited"', comment = 'Plan of a user''s personal tenant; unlimited: no limits.'
where name = 'default_plan' and value = '""';
