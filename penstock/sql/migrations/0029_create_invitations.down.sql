drop table penstock.tenant_blocks, penstock.invitations cascade;
