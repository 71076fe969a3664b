SELECT id, claim_id, task, args, headers, attempt, max_attempts, timeout
FROM aiopgq.claim_job_batch(:'worker', 10);
