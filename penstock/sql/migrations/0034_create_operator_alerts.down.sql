drop table penstock.operator_alerts;
