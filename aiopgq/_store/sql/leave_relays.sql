-- leave_relays: take down the flag of a relay that goes
--
--   $1  bigint  the value it gave the flag
--
-- Locks:   an advisory lock of the flag, for the statement
-- Index:   none
-- Returns: leave_relays
SELECT aiopgq.leave_relays($1) AS leave_relays
