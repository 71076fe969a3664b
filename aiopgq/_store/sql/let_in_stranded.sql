-- let_in_stranded: let in jobs outside whose key has room, the net below all that does so at once
--
-- Locks:   the gates of those keys, in order
-- Index:   jobs_outside, jobs_behind, jobs_inside, jobs_turn
-- Returns: entered
SELECT aiopgq.let_in_stranded() AS entered
