SELECT aiopgq.complete_job(:'id', :'claim_id', '{"sent": true}');
