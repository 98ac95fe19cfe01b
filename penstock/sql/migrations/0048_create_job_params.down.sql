drop table penstock.job_params;
