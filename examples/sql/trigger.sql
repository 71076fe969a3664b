CREATE FUNCTION welcome_user() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM aiopgq.enqueue('mail.send', jsonb_build_object('user_id', NEW.id), p_queue => 'mail');
    RETURN NEW;
END
$$;

CREATE TRIGGER welcome AFTER INSERT ON users FOR EACH ROW EXECUTE FUNCTION welcome_user();
