SELECT aiopgq.grant_producer('web');
SELECT aiopgq.grant_worker('mailer');
