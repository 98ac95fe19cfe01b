drop table penstock.sync_horizons;
drop sequence penstock.change_seqs;
