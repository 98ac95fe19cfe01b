update penstock.plans set limits = limits - array['jobs', 'rows', 'input_bytes'] where name = 'free';
update penstock.settings set value = '""' where name = 'default_plan' and value = '"unlimited"';
