drop table penstock.cost_sums, penstock.cost_entries, penstock.prices, penstock.exchange_rates cascade;
