SELECT aiopgq.cancel_job(:'id', :'claim_id', 'the user has unsubscribed');
