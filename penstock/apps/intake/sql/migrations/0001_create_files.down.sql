drop table intake.shell_file_results, intake.shell_files, intake.patients;
