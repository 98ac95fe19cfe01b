-- phase: expand
-- Secrets that must be read again are for functions only, and addresses of notifications for owners and admins. The
-- policies that replace these are in policies.sql; migrate drops no policy that it does not know.
drop policy if exists service_reads on penstock.notification_secrets;
drop policy if exists service_reads on penstock.wait_links;
drop policy if exists members_read on penstock.notification_targets;
drop policy if exists members_read on penstock.notifications;
