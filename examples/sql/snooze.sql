SELECT aiopgq.snooze_job(:'id', :'claim_id', '10 minutes');
