SELECT aiopgq.fail_job(:'id', :'claim_id', 'SMTPError: 451 try again later');
