-- migrate of the version before creates its policies again.
drop policy if exists admins_read on penstock.notification_targets;
drop policy if exists admins_read on penstock.notifications;
