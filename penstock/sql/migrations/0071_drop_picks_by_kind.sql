-- phase: contract
-- Replaced by functions that take the lanes instead of the kinds.

drop function if exists penstock._pick_round(
  text[], integer, uuid[], timestamptz, text, boolean, boolean, boolean);
drop function if exists penstock._pick_open(text[], integer, uuid[], timestamptz);
drop function if exists penstock._pick_gated(text[], integer, uuid[], timestamptz, boolean, boolean, boolean);
