drop table if exists penstock.route_failures, penstock.routed_lanes;
