drop table penstock.notifications;
drop table penstock.notification_secrets;
drop table penstock.notification_targets;
drop table penstock.streaks;
drop table penstock.failures;
