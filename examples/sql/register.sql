SELECT aiopgq.register_worker('mailer 1', ARRAY['mail'], ARRAY['mail.send'], p_lease => '60 seconds');
