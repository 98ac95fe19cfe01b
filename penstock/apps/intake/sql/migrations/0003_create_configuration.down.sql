drop table intake.upload_addresses;
