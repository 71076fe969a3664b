SELECT aiopgq.enqueue('mail.send', '{"user_id": 42}', p_queue => 'mail', p_delay => '5 minutes');
