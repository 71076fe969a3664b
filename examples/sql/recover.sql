SELECT aiopgq.recover_stale_jobs(:'worker');
