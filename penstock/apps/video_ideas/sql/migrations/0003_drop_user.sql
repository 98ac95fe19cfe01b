-- phase: contract
-- user_id is a column now.

drop function if exists video_ideas._user(text);
