drop table penstock.audit_seals, penstock.audit_marks;
