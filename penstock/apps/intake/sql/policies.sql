create policy members on intake.patients for select to authenticated
  using (tenant_id in (select penstock.my_tenants()));
create policy members on intake.shell_files for select to authenticated
  using (tenant_id in (select penstock.my_tenants()));
create policy members on intake.shell_file_results for select to authenticated
  using (tenant_id in (select penstock.my_tenants()));
create policy service_reads on intake.patients for select to service_role using (true);
create policy service_reads on intake.shell_files for select to service_role using (true);
create policy service_reads on intake.shell_file_results for select to service_role using (true);
create policy members on intake.usage_warnings for select to authenticated
  using (tenant_id in (select penstock.my_tenants()));
create policy service_reads on intake.usage_warnings for select to service_role using (true);
create policy members on intake.upload_addresses for select to authenticated
  using (tenant_id in (select penstock.my_tenants()));
create policy service_reads on intake.upload_addresses for select to service_role using (true);
