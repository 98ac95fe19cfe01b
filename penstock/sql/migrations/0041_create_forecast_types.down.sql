drop type penstock.simulated_event, penstock.simulated_group, penstock.forecast_group cascade;
