SELECT aiopgq.fail_job(:'id', :'claim_id', 'SMTPError: 550 no such user', p_bury => true);
