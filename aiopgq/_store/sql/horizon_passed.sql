-- horizon_passed: have all transactions ended that may have missed the flag?
--
--   $1  bigint  the transaction id taken after the flag was raised
--
-- Locks:   none
-- Index:   none
-- Returns: passed
SELECT aiopgq.horizon_passed($1) AS passed
