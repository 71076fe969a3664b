SELECT aiopgq.retire_worker(:'worker');
