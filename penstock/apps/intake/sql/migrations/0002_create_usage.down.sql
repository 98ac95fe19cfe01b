drop index intake.shell_files_files_hold, intake.shell_files_pages_hold;
drop table intake.usage_warnings;
