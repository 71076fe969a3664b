-- What the migrations add up to. Written by AIOPGQ_WRITE_GOLDEN=1 pytest tests/migrations

SEQUENCE event_ids
    -- An event draws its id under the lock of its shard. Not cached: what was drawn is at most the last value.
    AS bigint START 1 MINVALUE 1 MAXVALUE 9223372036854775807 INCREMENT 1 CACHE 1

UNLOGGED SEQUENCE lowerings_0
    AS bigint START 1 MINVALUE 1 MAXVALUE 9223372036854775807 INCREMENT 1 CACHE 1

UNLOGGED SEQUENCE lowerings_1
    AS bigint START 1 MINVALUE 1 MAXVALUE 9223372036854775807 INCREMENT 1 CACHE 1

UNLOGGED SEQUENCE lowerings_10
    AS bigint START 1 MINVALUE 1 MAXVALUE 9223372036854775807 INCREMENT 1 CACHE 1

UNLOGGED SEQUENCE lowerings_11
    AS bigint START 1 MINVALUE 1 MAXVALUE 9223372036854775807 INCREMENT 1 CACHE 1

UNLOGGED SEQUENCE lowerings_12
    AS bigint START 1 MINVALUE 1 MAXVALUE 9223372036854775807 INCREMENT 1 CACHE 1

UNLOGGED SEQUENCE lowerings_13
    AS bigint START 1 MINVALUE 1 MAXVALUE 9223372036854775807 INCREMENT 1 CACHE 1

UNLOGGED SEQUENCE lowerings_14
    AS bigint START 1 MINVALUE 1 MAXVALUE 9223372036854775807 INCREMENT 1 CACHE 1

UNLOGGED SEQUENCE lowerings_15
    AS bigint START 1 MINVALUE 1 MAXVALUE 9223372036854775807 INCREMENT 1 CACHE 1

UNLOGGED SEQUENCE lowerings_16
    AS bigint START 1 MINVALUE 1 MAXVALUE 9223372036854775807 INCREMENT 1 CACHE 1

UNLOGGED SEQUENCE lowerings_2
    AS bigint START 1 MINVALUE 1 MAXVALUE 9223372036854775807 INCREMENT 1 CACHE 1

UNLOGGED SEQUENCE lowerings_3
    AS bigint START 1 MINVALUE 1 MAXVALUE 9223372036854775807 INCREMENT 1 CACHE 1

UNLOGGED SEQUENCE lowerings_4
    AS bigint START 1 MINVALUE 1 MAXVALUE 9223372036854775807 INCREMENT 1 CACHE 1

UNLOGGED SEQUENCE lowerings_5
    AS bigint START 1 MINVALUE 1 MAXVALUE 9223372036854775807 INCREMENT 1 CACHE 1

UNLOGGED SEQUENCE lowerings_6
    AS bigint START 1 MINVALUE 1 MAXVALUE 9223372036854775807 INCREMENT 1 CACHE 1

UNLOGGED SEQUENCE lowerings_7
    AS bigint START 1 MINVALUE 1 MAXVALUE 9223372036854775807 INCREMENT 1 CACHE 1

UNLOGGED SEQUENCE lowerings_8
    AS bigint START 1 MINVALUE 1 MAXVALUE 9223372036854775807 INCREMENT 1 CACHE 1

UNLOGGED SEQUENCE lowerings_9
    AS bigint START 1 MINVALUE 1 MAXVALUE 9223372036854775807 INCREMENT 1 CACHE 1

SEQUENCE orders
    -- An ordered job draws its number once, when it is inserted.
    AS bigint START 1 MINVALUE 1 MAXVALUE 9223372036854775807 INCREMENT 1 CACHE 1

SEQUENCE places
    -- A job draws its place in line each time it becomes ready.
    AS bigint START 1 MINVALUE 1 MAXVALUE 9223372036854775807 INCREMENT 1 CACHE 1

SEQUENCE restraints
    AS bigint START 1 MINVALUE 1 MAXVALUE 9223372036854775807 INCREMENT 1 CACHE 1

UNLOGGED SEQUENCE sleepers_0
    AS bigint START 0 MINVALUE 0 MAXVALUE 9223372036854775807 INCREMENT 1 CACHE 1

UNLOGGED SEQUENCE sleepers_1
    AS bigint START 0 MINVALUE 0 MAXVALUE 9223372036854775807 INCREMENT 1 CACHE 1

UNLOGGED SEQUENCE sleepers_10
    AS bigint START 0 MINVALUE 0 MAXVALUE 9223372036854775807 INCREMENT 1 CACHE 1

UNLOGGED SEQUENCE sleepers_11
    AS bigint START 0 MINVALUE 0 MAXVALUE 9223372036854775807 INCREMENT 1 CACHE 1

UNLOGGED SEQUENCE sleepers_12
    AS bigint START 0 MINVALUE 0 MAXVALUE 9223372036854775807 INCREMENT 1 CACHE 1

UNLOGGED SEQUENCE sleepers_13
    AS bigint START 0 MINVALUE 0 MAXVALUE 9223372036854775807 INCREMENT 1 CACHE 1

UNLOGGED SEQUENCE sleepers_14
    AS bigint START 0 MINVALUE 0 MAXVALUE 9223372036854775807 INCREMENT 1 CACHE 1

UNLOGGED SEQUENCE sleepers_15
    AS bigint START 0 MINVALUE 0 MAXVALUE 9223372036854775807 INCREMENT 1 CACHE 1

UNLOGGED SEQUENCE sleepers_16
    -- Some relay sleeps until this moment, in milliseconds.
    AS bigint START 0 MINVALUE 0 MAXVALUE 9223372036854775807 INCREMENT 1 CACHE 1

UNLOGGED SEQUENCE sleepers_2
    AS bigint START 0 MINVALUE 0 MAXVALUE 9223372036854775807 INCREMENT 1 CACHE 1

UNLOGGED SEQUENCE sleepers_3
    AS bigint START 0 MINVALUE 0 MAXVALUE 9223372036854775807 INCREMENT 1 CACHE 1

UNLOGGED SEQUENCE sleepers_4
    AS bigint START 0 MINVALUE 0 MAXVALUE 9223372036854775807 INCREMENT 1 CACHE 1

UNLOGGED SEQUENCE sleepers_5
    AS bigint START 0 MINVALUE 0 MAXVALUE 9223372036854775807 INCREMENT 1 CACHE 1

UNLOGGED SEQUENCE sleepers_6
    AS bigint START 0 MINVALUE 0 MAXVALUE 9223372036854775807 INCREMENT 1 CACHE 1

UNLOGGED SEQUENCE sleepers_7
    AS bigint START 0 MINVALUE 0 MAXVALUE 9223372036854775807 INCREMENT 1 CACHE 1

UNLOGGED SEQUENCE sleepers_8
    AS bigint START 0 MINVALUE 0 MAXVALUE 9223372036854775807 INCREMENT 1 CACHE 1

UNLOGGED SEQUENCE sleepers_9
    AS bigint START 0 MINVALUE 0 MAXVALUE 9223372036854775807 INCREMENT 1 CACHE 1

UNLOGGED SEQUENCE sleepers_any
    AS bigint START 0 MINVALUE 0 MAXVALUE 9223372036854775807 INCREMENT 1 CACHE 1

UNLOGGED SEQUENCE waiters
    -- Somebody waits for results until this moment, in milliseconds.
    AS bigint START 0 MINVALUE 0 MAXVALUE 9223372036854775807 INCREMENT 1 CACHE 1

TABLE archive
    -- Completed and cancelled jobs, a partition a UTC day of completed_at.
    PARTITION BY RANGE (completed_at)
    id uuid NOT NULL
    worker_id uuid
    run_at timestamp with time zone NOT NULL
    created_at timestamp with time zone NOT NULL
    claimed_at timestamp with time zone
    started_at timestamp with time zone
    completed_at timestamp with time zone NOT NULL
    attempts integer NOT NULL
    max_attempts integer NOT NULL
    events_count integer NOT NULL
    progress real
    priority smallint NOT NULL
    status text NOT NULL
    queue text NOT NULL
    task text NOT NULL
    args jsonb NOT NULL
    headers jsonb
    current_stage text
    last_error text
    errors jsonb
    result jsonb
    CONSTRAINT status_is_completed_or_cancelled CHECK ((status = ANY (ARRAY['completed'::text, 'cancelled'::text])))
    CREATE INDEX archive_key ON ONLY aiopgq.archive USING btree (id)

TABLE dead_letters
    -- Failed jobs with all their errors, until replayed or purged.
    id uuid NOT NULL
    worker_id uuid
    run_at timestamp with time zone NOT NULL
    created_at timestamp with time zone NOT NULL
    claimed_at timestamp with time zone
    started_at timestamp with time zone
    failed_at timestamp with time zone NOT NULL DEFAULT clock_timestamp()
    timeout interval
    attempts integer NOT NULL
    max_attempts integer NOT NULL
    events_count integer NOT NULL
    progress real
    priority smallint NOT NULL
    queue text NOT NULL
    task text NOT NULL
    args jsonb NOT NULL
    headers jsonb
    current_stage text
    last_error text
    errors jsonb
    limit_key text
    unique_key text
    unique_for interval
    order_no bigint
    order_key text
    order_blocks boolean
    CONSTRAINT dead_letters_key PRIMARY KEY (id)
    CREATE INDEX dead_letters_blocking ON aiopgq.dead_letters USING btree (order_key, order_no) WHERE order_blocks
    CREATE INDEX dead_letters_failed_at ON aiopgq.dead_letters USING btree (failed_at)
    CREATE UNIQUE INDEX dead_letters_key ON aiopgq.dead_letters USING btree (id)

TABLE gates
    -- A row per key in use; locked by whoever lets its jobs in.
    WITH (fillfactor=50, autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=1000)
    key text NOT NULL
    lowest bigint NOT NULL DEFAULT 0 -- No job of this key that is inside has a lower place.
    full_at timestamp with time zone NOT NULL DEFAULT '-infinity'::timestamp with time zone
    next_at timestamp with time zone -- When jobs that wait for a token may be let in.
    CONSTRAINT gates_key PRIMARY KEY (key)
    CREATE UNIQUE INDEX gates_key ON aiopgq.gates USING btree (key)
    CREATE INDEX gates_next ON aiopgq.gates USING btree (next_at) WHERE (next_at IS NOT NULL)

TABLE inbox
    -- A row per message and consumer, written in the transaction of its effect.
    WITH (autovacuum_vacuum_scale_factor=0.05, autovacuum_vacuum_cost_delay=0)
    received_at timestamp with time zone NOT NULL DEFAULT clock_timestamp()
    consumer text NOT NULL
    message_id text NOT NULL
    CONSTRAINT consumer_has_1_to_200_bytes CHECK (((octet_length(consumer) >= 1) AND (octet_length(consumer) <= 200)))
    CONSTRAINT inbox_key PRIMARY KEY (consumer, message_id)
    CONSTRAINT message_id_has_1_to_1000_bytes CHECK (((octet_length(message_id) >= 1) AND (octet_length(message_id) <= 1000)))
    CREATE UNIQUE INDEX inbox_key ON aiopgq.inbox USING btree (consumer, message_id)
    CREATE INDEX inbox_received ON aiopgq.inbox USING btree (received_at)

TABLE jobs
    WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=10000, autovacuum_vacuum_insert_threshold=-1, autovacuum_vacuum_cost_delay=0, autovacuum_analyze_scale_factor=0, autovacuum_analyze_threshold=200000)
    id uuid NOT NULL
    worker_id uuid -- The incarnation that owns the job; never reused.
    claim_id uuid -- The fence: one fresh value per claim batch; every write to a claimed job names it.
    place bigint -- Position in line; NULL while the job waits for run_at.
    run_at timestamp with time zone NOT NULL DEFAULT clock_timestamp()
    created_at timestamp with time zone NOT NULL DEFAULT clock_timestamp()
    claimed_at timestamp with time zone
    started_at timestamp with time zone
    timeout interval -- NULL = the timeout of the task; zero = none.
    attempts integer NOT NULL DEFAULT 0 -- Runs begun; spent when claimed, given back on release and snooze.
    max_attempts integer NOT NULL DEFAULT 12
    events_count integer NOT NULL DEFAULT 0
    progress real
    priority smallint NOT NULL DEFAULT 100
    cancel_requested boolean NOT NULL DEFAULT false
    status text NOT NULL DEFAULT 'pending'::text
    queue text NOT NULL DEFAULT 'default'::text
    task text NOT NULL
    args jsonb NOT NULL DEFAULT '{}'::jsonb
    headers jsonb
    held text -- NULL = free; else why it may not be claimed.
    current_stage text
    last_error text
    errors jsonb
    unique_key text
    limit_key text -- NAME of its limit, or NAME/VALUE for a limit with a key.
    unique_for interval -- How long the key is kept after the job is completed; NULL = not at all.
    order_no bigint
    order_key text -- NAME/VALUE: of the jobs with this key one runs at a time, in the order of order_no.
    order_blocks boolean -- As a dead letter it stops those behind it.
    CONSTRAINT args_is_an_object CHECK ((jsonb_typeof(args) = 'object'::text))
    CONSTRAINT attempts_can_grow CHECK (((attempts >= 0) AND (attempts <= 2000000000)))
    CONSTRAINT created_at_is_between_1900_and_9999 CHECK (((created_at >= '1900-01-01 00:00:00+00'::timestamp with time zone) AND (created_at < '9999-01-01 00:00:00+00'::timestamp with time zone)))
    CONSTRAINT errors_is_an_array CHECK ((jsonb_typeof(errors) = 'array'::text))
    CONSTRAINT headers_is_an_object CHECK ((jsonb_typeof(headers) = 'object'::text))
    CONSTRAINT jobs_key PRIMARY KEY (id)
    CONSTRAINT limit_key_has_1_to_2000_bytes CHECK (((octet_length(limit_key) >= 1) AND (octet_length(limit_key) <= 2000)))
    CONSTRAINT max_attempts_is_at_least_one CHECK ((max_attempts >= 1))
    CONSTRAINT only_a_claimed_job_has_a_claim_id CHECK (((status = 'pending'::text) = (claim_id IS NULL)))
    CONSTRAINT only_a_claimed_job_has_a_worker CHECK (((claim_id IS NULL) = (worker_id IS NULL)))
    CONSTRAINT order_key_has_1_to_2000_bytes CHECK (((octet_length(order_key) >= 1) AND (octet_length(order_key) <= 2000)))
    CONSTRAINT progress_is_a_percentage CHECK (((progress >= (0)::double precision) AND (progress <= (100)::double precision)))
    CONSTRAINT queue_has_1_to_200_bytes CHECK (((octet_length(queue) >= 1) AND (octet_length(queue) <= 200)))
    CONSTRAINT run_at_is_between_1900_and_9999 CHECK (((run_at >= '1900-01-01 00:00:00+00'::timestamp with time zone) AND (run_at < '9999-01-01 00:00:00+00'::timestamp with time zone)))
    CONSTRAINT status_is_unfinished CHECK ((status = ANY (ARRAY['pending'::text, 'claimed'::text, 'running'::text])))
    CONSTRAINT task_has_1_to_200_bytes CHECK (((octet_length(task) >= 1) AND (octet_length(task) <= 200)))
    CONSTRAINT timeout_is_at_most_a_hundred_years CHECK (((timeout >= '00:00:00'::interval) AND (timeout <= '36500 days'::interval)))
    CONSTRAINT unique_for_is_at_most_a_hundred_years CHECK (((unique_for >= '00:00:00'::interval) AND (unique_for <= '36500 days'::interval)))
    CONSTRAINT unique_key_has_1_to_1000_bytes CHECK (((octet_length(unique_key) >= 1) AND (octet_length(unique_key) <= 1000)))
    CREATE INDEX jobs_behind ON aiopgq.jobs USING btree (order_key, order_no) WHERE (held = ANY (ARRAY['order'::text, 'new order'::text]))
    CREATE INDEX jobs_due ON aiopgq.jobs USING btree (run_at) WHERE ((status = 'pending'::text) AND (held IS NULL) AND (place IS NULL))
    CREATE INDEX jobs_held ON aiopgq.jobs USING btree (held, task) WHERE (held IS NOT NULL)
    CREATE INDEX jobs_inside ON aiopgq.jobs USING btree (limit_key, place) WHERE ((limit_key IS NOT NULL) AND (held IS NULL) AND (place IS NOT NULL))
    CREATE UNIQUE INDEX jobs_key ON aiopgq.jobs USING btree (id)
    CREATE INDEX jobs_line ON aiopgq.jobs USING btree (queue, priority DESC, place) WHERE ((status = 'pending'::text) AND (held IS NULL) AND (place IS NOT NULL))
    CREATE INDEX jobs_outside ON aiopgq.jobs USING btree (limit_key, priority DESC, place) WHERE (held = 'limit'::text)
    CREATE INDEX jobs_turn ON aiopgq.jobs USING btree (order_key) WHERE ((order_key IS NOT NULL) AND ((held IS NULL) OR (held <> ALL (ARRAY['order'::text, 'new order'::text]))))
    CREATE UNIQUE INDEX jobs_unique ON aiopgq.jobs USING btree (unique_key, task) WHERE (unique_key IS NOT NULL)
    CREATE INDEX jobs_worker ON aiopgq.jobs USING btree (worker_id) WHERE (worker_id IS NOT NULL)
    CREATE TRIGGER wake_workers AFTER INSERT ON aiopgq.jobs REFERENCING NEW TABLE AS new_jobs FOR EACH STATEMENT EXECUTE FUNCTION aiopgq.wake_after_insert()

TABLE limits
    -- What workers have declared: how many jobs of each key run at once, how many start in a period.
    name text NOT NULL
    running integer
    rate integer
    burst integer
    per double precision
    CONSTRAINT limits_key PRIMARY KEY (name)
    CONSTRAINT rate_has_a_period CHECK (((num_nulls(rate, burst, per) = ANY (ARRAY[0, 3])) AND (rate >= 1) AND (burst >= 1) AND (per > (0)::double precision)))
    CONSTRAINT running_is_at_least_one CHECK ((running >= 1))
    CREATE UNIQUE INDEX limits_key ON aiopgq.limits USING btree (name)

TABLE migrations
    -- The migrations applied to this schema, and by which version.
    number integer NOT NULL
    oldest_code integer NOT NULL -- Code may run on this schema if it knows migrations up to this number, or later ones.
    applied_at timestamp with time zone NOT NULL DEFAULT clock_timestamp()
    name text NOT NULL
    checksum text NOT NULL -- SHA-256 of the file.
    applied_by text NOT NULL
    CONSTRAINT migrations_key PRIMARY KEY (number)
    CREATE UNIQUE INDEX migrations_key ON aiopgq.migrations USING btree (number)

TABLE outbox
    -- Events, written by the transactions they are about; a relay publishes them.
    WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=10000, autovacuum_vacuum_insert_threshold=-1, autovacuum_analyze_scale_factor=0, autovacuum_analyze_threshold=50000, autovacuum_vacuum_cost_delay=0)
    id bigint NOT NULL
    event_id uuid NOT NULL DEFAULT gen_random_uuid()
    created_at timestamp with time zone NOT NULL DEFAULT clock_timestamp()
    published_at timestamp with time zone
    retry_at timestamp with time zone
    attempts integer NOT NULL DEFAULT 0
    shard smallint NOT NULL
    held text -- Why it is not in line: it failed and is tried again at retry_at, it is blocked behind such a one of its aggregate, it was set aside, or an operator skipped it. NULL = in line, or published.
    aggregate_type text NOT NULL
    aggregate_id text NOT NULL
    event_type text NOT NULL
    payload jsonb NOT NULL
    headers jsonb NOT NULL DEFAULT '{}'::jsonb
    last_error text
    CONSTRAINT aggregate_id_has_1_to_200_bytes CHECK (((octet_length(aggregate_id) >= 1) AND (octet_length(aggregate_id) <= 200)))
    CONSTRAINT aggregate_type_has_1_to_200_bytes CHECK (((octet_length(aggregate_type) >= 1) AND (octet_length(aggregate_type) <= 200)))
    CONSTRAINT created_at_is_between_1900_and_9999 CHECK (((created_at >= '1900-01-01 00:00:00+00'::timestamp with time zone) AND (created_at < '9999-01-01 00:00:00+00'::timestamp with time zone)))
    CONSTRAINT event_type_has_1_to_200_bytes CHECK (((octet_length(event_type) >= 1) AND (octet_length(event_type) <= 200)))
    CONSTRAINT headers_is_an_object CHECK ((jsonb_typeof(headers) = 'object'::text))
    CONSTRAINT held_is_a_known_reason CHECK ((held = ANY (ARRAY['retry'::text, 'blocked'::text, 'set aside'::text, 'skipped'::text])))
    CONSTRAINT only_a_retry_has_a_moment CHECK ((((held = 'retry'::text) IS TRUE) = (retry_at IS NOT NULL)))
    CONSTRAINT outbox_event_id UNIQUE (event_id)
    CONSTRAINT outbox_key PRIMARY KEY (id)
    CREATE UNIQUE INDEX outbox_event_id ON aiopgq.outbox USING btree (event_id)
    CREATE INDEX outbox_held ON aiopgq.outbox USING btree (aggregate_type, aggregate_id, id) WHERE ((published_at IS NULL) AND (held IS NOT NULL))
    CREATE UNIQUE INDEX outbox_key ON aiopgq.outbox USING btree (id)
    CREATE INDEX outbox_line ON aiopgq.outbox USING btree (id) WHERE ((published_at IS NULL) AND (held IS NULL))
    CREATE INDEX outbox_published ON aiopgq.outbox USING btree (published_at) WHERE (published_at IS NOT NULL)
    CREATE INDEX outbox_retry ON aiopgq.outbox USING btree (retry_at) WHERE (held = 'retry'::text)
    CREATE TRIGGER number_event BEFORE INSERT ON aiopgq.outbox FOR EACH ROW EXECUTE FUNCTION aiopgq.number_event()
    CREATE TRIGGER wake_relays AFTER INSERT ON aiopgq.outbox FOR EACH STATEMENT EXECUTE FUNCTION aiopgq.wake_relays()

TABLE outbox_shards
    -- Which relay publishes the events of a shard; whatever it writes names itself.
    WITH (fillfactor=50)
    shard smallint NOT NULL
    holder uuid
    CONSTRAINT outbox_shards_key PRIMARY KEY (shard)
    CONSTRAINT there_are_256_shards CHECK (((shard >= 0) AND (shard <= 255)))
    CREATE UNIQUE INDEX outbox_shards_key ON aiopgq.outbox_shards USING btree (shard)

TABLE paused_tasks
    name text NOT NULL
    paused_at timestamp with time zone NOT NULL DEFAULT clock_timestamp()
    CONSTRAINT paused_tasks_key PRIMARY KEY (name)
    CREATE UNIQUE INDEX paused_tasks_key ON aiopgq.paused_tasks USING btree (name)

TABLE queues
    -- A row for each queue that is paused or has a limit.
    WITH (fillfactor=50, autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=1000)
    name text NOT NULL
    paused_at timestamp with time zone
    full_at timestamp with time zone NOT NULL DEFAULT '-infinity'::timestamp with time zone
    running integer
    rate integer
    burst integer
    per double precision
    CONSTRAINT queues_key PRIMARY KEY (name)
    CONSTRAINT rate_has_a_period CHECK (((num_nulls(rate, burst, per) = ANY (ARRAY[0, 3])) AND (rate >= 1) AND (burst >= 1) AND (per > (0)::double precision)))
    CONSTRAINT running_is_at_least_one CHECK ((running >= 1))
    CREATE UNIQUE INDEX queues_key ON aiopgq.queues USING btree (name)

TABLE relays
    -- A row per live relay. One that is gone has lost all its shards; ids are never reused.
    WITH (fillfactor=50, autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=1000)
    id uuid NOT NULL
    name text NOT NULL
    host text NOT NULL
    pid integer NOT NULL
    beat bigint NOT NULL DEFAULT 0
    lease interval NOT NULL
    started_at timestamp with time zone NOT NULL DEFAULT clock_timestamp()
    beat_at timestamp with time zone NOT NULL DEFAULT clock_timestamp()
    CONSTRAINT relays_key PRIMARY KEY (id)
    CREATE UNIQUE INDEX relays_key ON aiopgq.relays USING btree (id)

TABLE rights
    -- What grant_producer, grant_reader and grant_worker grant. A worker may execute all functions but those that grant.
    grantee text NOT NULL
    privileges text NOT NULL
    kind text NOT NULL
    name text NOT NULL
    CONSTRAINT grantee_is_producer_reader_or_worker CHECK ((grantee = ANY (ARRAY['producer'::text, 'reader'::text, 'worker'::text])))
    CONSTRAINT kind_is_function_table_or_sequence CHECK ((kind = ANY (ARRAY['FUNCTION'::text, 'TABLE'::text, 'SEQUENCE'::text])))
    CONSTRAINT rights_key PRIMARY KEY (grantee, kind, name)
    CREATE UNIQUE INDEX rights_key ON aiopgq.rights USING btree (grantee, kind, name)

TABLE schedules
    -- What enqueues jobs at set times.
    WITH (fillfactor=50)
    name text NOT NULL
    next_at timestamp with time zone -- The next fire time; NULL: to be computed by a worker, from since on.
    since timestamp with time zone NOT NULL DEFAULT clock_timestamp() -- When it was made, changed or resumed; it has no earlier fire times.
    last_at timestamp with time zone -- The last fire time a job was enqueued for.
    paused_at timestamp with time zone
    seen_at timestamp with time zone NOT NULL DEFAULT clock_timestamp() -- When a live worker last declared it; a while later it fires no more.
    created_at timestamp with time zone NOT NULL DEFAULT clock_timestamp()
    last_job uuid
    every double precision -- Seconds between two fire times.
    misfire_window double precision NOT NULL DEFAULT 86400
    timeout double precision -- Seconds; NULL = the timeout of the task; zero = none.
    max_attempts integer NOT NULL DEFAULT 12
    priority smallint NOT NULL DEFAULT 100
    declared boolean NOT NULL DEFAULT false -- Written by workers because their code declares it; else made at run time.
    cron text
    timezone text NOT NULL DEFAULT 'UTC'::text
    misfire text NOT NULL DEFAULT 'once'::text
    queue text NOT NULL DEFAULT 'default'::text
    task text NOT NULL
    args jsonb NOT NULL DEFAULT '{}'::jsonb
    headers jsonb
    limit_key text
    order_key text
    order_blocks boolean
    CONSTRAINT a_schedule_has_an_expression_or_an_interval CHECK (((cron IS NULL) <> (every IS NULL)))
    CONSTRAINT an_interval_is_a_tenth_of_a_second_to_a_hundred_years CHECK (((every >= (0.1)::double precision) AND (every <= ('3153600000'::bigint)::double precision)))
    CONSTRAINT args_is_an_object CHECK ((jsonb_typeof(args) = 'object'::text))
    CONSTRAINT headers_is_an_object CHECK ((jsonb_typeof(headers) = 'object'::text))
    CONSTRAINT max_attempts_is_at_least_one CHECK ((max_attempts >= 1))
    CONSTRAINT misfire_is_skip_once_or_all CHECK ((misfire = ANY (ARRAY['skip'::text, 'once'::text, 'all'::text])))
    CONSTRAINT misfire_window_is_at_most_a_hundred_years CHECK (((misfire_window >= (0)::double precision) AND (misfire_window <= ('3153600000'::bigint)::double precision)))
    CONSTRAINT name_has_1_to_200_bytes CHECK (((octet_length(name) >= 1) AND (octet_length(name) <= 200)))
    CONSTRAINT queue_has_1_to_200_bytes CHECK (((octet_length(queue) >= 1) AND (octet_length(queue) <= 200)))
    CONSTRAINT schedules_key PRIMARY KEY (name)
    CONSTRAINT task_has_1_to_200_bytes CHECK (((octet_length(task) >= 1) AND (octet_length(task) <= 200)))
    CONSTRAINT timeout_is_at_most_a_hundred_years CHECK (((timeout >= (0)::double precision) AND (timeout <= ('3153600000'::bigint)::double precision)))
    CREATE UNIQUE INDEX schedules_key ON aiopgq.schedules USING btree (name)

UNLOGGED TABLE seen_beats
    -- What each worker written in SQL has itself seen of the beats of the others; since when a beat stands still.
    observer uuid NOT NULL
    worker uuid NOT NULL
    beat bigint NOT NULL
    since timestamp with time zone NOT NULL
    read_at timestamp with time zone NOT NULL
    CONSTRAINT seen_beats_key PRIMARY KEY (observer, worker)
    CREATE UNIQUE INDEX seen_beats_key ON aiopgq.seen_beats USING btree (observer, worker)

TABLE unique_holds
    -- Keys of completed jobs that are unique for a period; apart from the archive, whose retention may be shorter.
    unique_key text NOT NULL
    task text NOT NULL
    id uuid NOT NULL
    until timestamp with time zone NOT NULL
    CONSTRAINT unique_holds_key PRIMARY KEY (unique_key, task)
    CREATE UNIQUE INDEX unique_holds_key ON aiopgq.unique_holds USING btree (unique_key, task)
    CREATE INDEX unique_holds_until ON aiopgq.unique_holds USING btree (until)

TABLE workers
    -- A row per incarnation of a worker; its beat, never its jobs, says that it lives.
    WITH (fillfactor=50)
    id uuid NOT NULL
    parent uuid
    beat bigint NOT NULL DEFAULT 0
    started_at timestamp with time zone NOT NULL DEFAULT clock_timestamp()
    heartbeat_at timestamp with time zone NOT NULL DEFAULT clock_timestamp()
    dead_at timestamp with time zone
    lease interval NOT NULL
    pid integer NOT NULL
    concurrency integer NOT NULL
    draining boolean NOT NULL DEFAULT false
    name text NOT NULL
    host text NOT NULL
    version text NOT NULL
    queues text[] NOT NULL
    tasks text[] NOT NULL
    backend_pids integer[] NOT NULL DEFAULT '{}'::integer[]
    drain_requested boolean NOT NULL DEFAULT false -- Somebody asked it to claim no more, finish what runs, and end.
    CONSTRAINT workers_key PRIMARY KEY (id)
    CREATE UNIQUE INDEX workers_key ON aiopgq.workers USING btree (id)

VIEW all_jobs
    -- Every job that is still known, whatever table holds it.
    id uuid
    queue text
    task text
    status text
    priority smallint
    attempts integer
    max_attempts integer
    created_at timestamp with time zone
    run_at timestamp with time zone
    claimed_at timestamp with time zone
    started_at timestamp with time zone
    finished_at timestamp with time zone
    worker_id uuid
    progress real
    current_stage text
    events_count integer
    held text
    cancel_requested boolean
    args jsonb
    headers jsonb
    result jsonb
    last_error text
    errors jsonb

FUNCTION aiopgq.add_event(p_aggregate_type text, p_aggregate_id text, p_event_type text, p_payload jsonb, p_headers jsonb DEFAULT '{}'::jsonb, p_event_id uuid DEFAULT gen_random_uuid())
    -- Add an event in the transaction of the caller; repeating a p_event_id adds nothing new.
    RETURNS uuid LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path=pg_catalog
    md5 7d2f19d234de75a128714fc3f67ac3d9

FUNCTION aiopgq.admit_jobs(p_tasks text[], p_limit integer, OUT moved integer, OUT next_in double precision)
    -- Look at jobs that have arrived, and at keys whose next token is due. next_in: seconds until the next token.
    RETURNS record LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET plan_cache_mode=force_generic_plan
    SET enable_seqscan=off
    SET enable_sort=off
    SET enable_hashjoin=off
    SET enable_mergejoin=off
    SET jit=off
    md5 cb93718b6b00bf728ea09f092c24e759

FUNCTION aiopgq.append_error(p_errors jsonb, p_entry jsonb)
    RETURNS jsonb LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN (p_entry IS NULL) THEN p_errors WHEN (jsonb_array_length(COALESCE(p_errors, '[]'::jsonb)) >= 50) THEN ((p_errors - 1) || p_entry) ELSE (COALESCE(p_errors, '[]'::jsonb) || p_entry) END

FUNCTION aiopgq.await_results(p_for double precision)
    RETURNS void LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path=pg_catalog
    md5 ff1251f3a6f3cae945bba6f231102b2f

FUNCTION aiopgq.backoff(p_attempt integer)
    -- The default backoff of tasks: one second, then four times as long each, at most an hour, a fifth more or less.
    RETURNS double precision LANGUAGE sql VOLATILE PARALLEL UNSAFE
    RETURN (LEAST((3600)::double precision, power((4)::double precision, ((LEAST(GREATEST(p_attempt, 1), 10) - 1))::double precision)) * ((0.8)::double precision + ((0.4)::double precision * random())))

FUNCTION aiopgq.begin_run(p_id uuid, p_claim uuid)
    -- Tell by a lock whose transaction this is, until it ends. False: the job belongs to somebody else already.
    RETURNS boolean LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET plan_cache_mode=force_generic_plan
    SET enable_seqscan=off
    SET jit=off
    md5 e7aa576f61ad26452911ef8fd4a52ffe

FUNCTION aiopgq.block_events(p_relay uuid, p_ids bigint[])
    -- Take events out of the line that wait for one of their aggregate that failed, so that nobody reads past them.
    RETURNS integer LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path=pg_catalog
    SET enable_seqscan=off
    SET jit=off
    md5 45ac51d1940bc4469f84a5d08d335c4b

FUNCTION aiopgq.bury_jobs(p_ids uuid[], p_claims uuid[], p_reasons text[], p_errors text[])
    -- Move failed jobs to the dead letters with the error of their last attempt.
    RETURNS SETOF uuid LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET plan_cache_mode=force_generic_plan
    SET enable_seqscan=off
    SET enable_hashjoin=off
    SET enable_mergejoin=off
    SET jit=off
    md5 a4b899697d1ec9364b7a6879ce38256e

FUNCTION aiopgq.bury_worker(p_parent uuid, p_pid integer, p_keep boolean)
    -- Declare the incarnations of a child process dead, of which its parent knows that it has ended, and take their jobs.
    RETURNS integer LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    md5 a0d972d72f14d1b6806848c341a85c3f

FUNCTION aiopgq.cancel_job(p_id uuid)
    -- Cancel a job: a pending one at once, a claimed one by asking its worker. Returns cancelled, requested, finished or not found.
    RETURNS text LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    md5 8b25a546ce7f2ca04a265aae455dd39f

FUNCTION aiopgq.cancel_job(p_id uuid, p_claim uuid, p_reason text DEFAULT NULL::text)
    -- End a claimed job as cancelled, by its worker. False: it belongs to somebody else by now.
    RETURNS boolean LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    md5 d76e4901d475ff68371c9b3528658975

FUNCTION aiopgq.cancel_jobs(p_ids uuid[], p_claims uuid[], p_reasons text[], p_keep boolean)
    -- Move cancelled jobs to the archive: claimed ones by their claim_id, pending ones by NULL.
    RETURNS SETOF uuid LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET plan_cache_mode=force_generic_plan
    SET enable_seqscan=off
    SET enable_hashjoin=off
    SET enable_mergejoin=off
    SET jit=off
    md5 782f76097fee7648911a3fc79d8eb871

FUNCTION aiopgq.channel()
    -- The NOTIFY channel: the name of this schema.
    RETURNS text LANGUAGE plpgsql STABLE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path=pg_catalog
    md5 2ef8670e23de505838db6ab8a38452aa

FUNCTION aiopgq.claim_job_batch(p_worker uuid, p_limit integer DEFAULT 1)
    -- Claim up to p_limit due jobs of the queues and tasks the worker has registered; commit before running them. Nothing while it drains; an error if it is dead.
    RETURNS TABLE(id uuid, claim_id uuid, task text, queue text, args jsonb, headers jsonb, attempt integer, max_attempts integer, timeout interval, created_at timestamp with time zone) LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    md5 7d9ef3202eb1438b7b8bc44675404386

FUNCTION aiopgq.claim_lanes(p_worker uuid, p_claim uuid, p_limit integer, p_tasks text[], p_queues text[], p_slots integer[], p_lane_queues text[], p_lane_priorities smallint[], p_lane_bounds bigint[])
    -- Claim ready jobs: each queue fills its slots from its lanes in the order given, p_limit in all. Lanes NULL: sweep every lane of the queues from the start.
    RETURNS TABLE(id uuid, queue text, task text, priority smallint, place bigint, args text, headers text, attempts integer, max_attempts integer, timeout interval, created_at timestamp with time zone, run_at timestamp with time zone) LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET plan_cache_mode=force_generic_plan
    SET enable_seqscan=off
    SET enable_bitmapscan=off
    SET enable_sort=off
    SET enable_hashjoin=off
    SET enable_mergejoin=off
    SET jit=off
    md5 f29ddce1b3b2af78767794eb7908f561

FUNCTION aiopgq.complete_job(p_id uuid, p_claim uuid, p_result jsonb DEFAULT NULL::jsonb, p_keep boolean DEFAULT true)
    -- Complete a claimed job. False: it belongs to somebody else by now, and nothing was written.
    RETURNS boolean LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    md5 0ab101d468c16af1cf5c2112265776e9

FUNCTION aiopgq.complete_jobs(p_ids uuid[], p_claims uuid[], p_results text[], p_keep boolean, p_let_in boolean DEFAULT true)
    -- Move completed jobs to the archive (or drop them if not p_keep); returns the ids that were still ours. A key that is unique for a period after completion is held from here on. p_let_in: let jobs in that waited for them, which locks their gates until the transaction ends.
    RETURNS SETOF uuid LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET plan_cache_mode=force_generic_plan
    SET enable_seqscan=off
    SET enable_hashjoin=off
    SET enable_mergejoin=off
    SET jit=off
    md5 e70ff317fcdb3ea618b3af22da35da32

FUNCTION aiopgq.complete_within(p_id uuid, p_claim uuid, p_result text, p_keep boolean)
    -- Complete a job inside the transaction of its handler. False: the job belongs to somebody else.
    RETURNS boolean LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    md5 576a0994660ed5b3a3b646a6e9a3181a

FUNCTION aiopgq.count_ready(p_queue text, p_limit integer)
    -- Count the jobs of a queue that are in line, up to p_limit.
    RETURNS integer LANGUAGE plpgsql STABLE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path=pg_catalog
    SET plan_cache_mode=force_generic_plan
    SET enable_seqscan=off
    SET enable_bitmapscan=off
    SET jit=off
    md5 fe2e646d54ab60dd3e06c547c854a0c2

FUNCTION aiopgq.declare_limits(p_names text[], p_running integer[], p_rates integer[], p_bursts integer[], p_pers double precision[], p_unlimited text[])
    -- Say what limits the tasks of a worker have; the last one that starts is right, and it applies to all keys at once.
    RETURNS integer LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    md5 7861bce18a405d8cb325c359239f66a8

FUNCTION aiopgq.drain_workers(p_ids uuid[])
    -- Ask workers to claim no more, finish what runs, and end: at once through NOTIFY, else with their next beat.
    RETURNS SETOF uuid LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    md5 f2601577c80814cc9d2cff0be656a109

FUNCTION aiopgq.drop_partitions(p_retention double precision)
    -- Drop the partitions whose whole day is older than p_retention seconds. Waits 50 ms for a lock at most.
    RETURNS integer LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path=pg_catalog
    SET lock_timeout=50ms
    md5 41d2b8dec95a5bb9983b87ca99fabc16

FUNCTION aiopgq.end_transactions(p_ids uuid[], p_claims uuid[])
    -- End the transactions that runs of these claims have left open, with all their locks; returns how many there were.
    RETURNS integer LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    md5 a7c3496f1777da0e62e2502bcd39a8a1

FUNCTION aiopgq.enqueue(p_task text, p_args jsonb DEFAULT '{}'::jsonb, p_queue text DEFAULT 'default'::text, p_priority integer DEFAULT 100, p_delay interval DEFAULT NULL::interval, p_run_at timestamp with time zone DEFAULT NULL::timestamp with time zone, p_max_attempts integer DEFAULT 12, p_timeout interval DEFAULT NULL::interval, p_headers jsonb DEFAULT NULL::jsonb, p_id uuid DEFAULT NULL::uuid, p_unique_key text DEFAULT NULL::text, p_on_conflict text DEFAULT 'skip'::text, p_unique_for interval DEFAULT NULL::interval, p_max_delay interval DEFAULT NULL::interval, p_limit_key text DEFAULT NULL::text, p_order_key text DEFAULT NULL::text, p_order_blocks boolean DEFAULT false)
    -- Enqueue one job from SQL, a trigger or another language; repeating a p_id enqueues nothing new. With a p_unique_key that an unfinished job of the task has, returns that job: as it is (skip), with these arguments and this moment (replace), or postponed (debounce, by p_max_delay after it was first enqueued at most). With a p_limit_key or a p_order_key it waits outside until it is let in.
    RETURNS uuid LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    md5 c78f51e83c5dae90d8bcdbfe9e6dd1d4

FUNCTION aiopgq.enqueue_jobs(p_ids uuid[], p_queues text[], p_tasks text[], p_args text[], p_priorities smallint[], p_delays double precision[], p_run_ats timestamp with time zone[], p_max_attempts integer[], p_timeouts double precision[], p_headers text[])
    -- Insert a batch of jobs, in the order of the arrays; return how many. Times are seconds; a NULL delay and run_at means now. A queue, task, priority or number of attempts that is missing is the first one of its array.
    RETURNS bigint LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path=pg_catalog
    md5 26de44b4c0c01e974bc61b66f6671f41

FUNCTION aiopgq.enqueue_jobs_once(p_ids uuid[], p_queues text[], p_tasks text[], p_args text[], p_priorities smallint[], p_delays double precision[], p_run_ats timestamp with time zone[], p_max_attempts integer[], p_timeouts double precision[], p_headers text[])
    -- As enqueue_jobs, but a job that is already known, whatever became of it, is not inserted again.
    RETURNS SETOF uuid LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET plan_cache_mode=force_generic_plan
    SET enable_seqscan=off
    SET enable_indexonlyscan=off
    SET enable_hashjoin=off
    SET enable_mergejoin=off
    SET jit=off
    SET search_path=pg_catalog
    md5 e631ef4c01e4bfdf6206ff4bb0952d51

FUNCTION aiopgq.enqueue_restrained_jobs(p_ids uuid[], p_queues text[], p_tasks text[], p_args text[], p_priorities smallint[], p_delays double precision[], p_run_ats timestamp with time zone[], p_max_attempts integer[], p_timeouts double precision[], p_headers text[], p_limit_keys text[], p_order_keys text[], p_order_blocks boolean[])
    -- As enqueue_jobs_once, for batches in which jobs have a limit or an order; those wait outside until they are let in.
    RETURNS SETOF uuid LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path=pg_catalog
    SET plan_cache_mode=force_generic_plan
    SET enable_seqscan=off
    SET enable_indexonlyscan=off
    SET enable_hashjoin=off
    SET enable_mergejoin=off
    SET jit=off
    md5 c0439357be003d90ec8263a5e5797d6e

FUNCTION aiopgq.enqueue_unique_jobs(p_ids uuid[], p_queues text[], p_tasks text[], p_args text[], p_priorities smallint[], p_delays double precision[], p_run_ats timestamp with time zone[], p_max_attempts integer[], p_timeouts double precision[], p_headers text[], p_limit_keys text[], p_order_keys text[], p_order_blocks boolean[], p_keys text[], p_on_conflicts text[], p_unique_fors double precision[], p_max_delays double precision[], p_once boolean)
    -- As enqueue_jobs_once, for jobs with unique keys and others beside them: all or none. The verdict on each: new, known (its id), existing, replaced or debounced (its key; id is the job that has it); or one row, busy: another transaction (writer) has written the key and did not end within five seconds, and nothing was inserted.
    RETURNS TABLE(number bigint, id uuid, verdict text, writer text) LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET lock_timeout=5s
    SET search_path=pg_catalog
    SET plan_cache_mode=force_generic_plan
    SET enable_seqscan=off
    SET enable_hashjoin=off
    SET enable_mergejoin=off
    SET jit=off
    md5 4648f8500b7cfafcf725ff53dddcefae

FUNCTION aiopgq.event_shard(p_aggregate_type text, p_aggregate_id text)
    -- The shard of an aggregate, 0 to 255.
    RETURNS smallint LANGUAGE sql IMMUTABLE PARALLEL SAFE STRICT
    RETURN (get_byte(sha256(convert_to(((p_aggregate_type || '/'::text) || p_aggregate_id), 'UTF8'::name)), 0))::smallint

FUNCTION aiopgq.event_writers(OUT newest bigint, OUT shards integer[], OUT transactions text[])
    -- The last id drawn, and then the unfinished transactions that have added events, each with its shard.
    RETURNS record LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path=pg_catalog
    md5 95286dd86863aa573374267aa9de707c

FUNCTION aiopgq.fail_job(p_id uuid, p_claim uuid, p_error text, p_delay interval DEFAULT NULL::interval, p_bury boolean DEFAULT false, p_traceback text DEFAULT NULL::text)
    -- A run has failed: pending again after p_delay (default: the backoff of tasks), or a dead letter if no attempt is left or p_bury. Returns the status it has now; cancelled if somebody asked for that; NULL if it is not yours.
    RETURNS text LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET plan_cache_mode=force_generic_plan
    SET enable_seqscan=off
    SET jit=off
    md5 4c70745c4eb9a3afd773e0adf848c069

FUNCTION aiopgq.fall_asleep(p_slots integer[], p_seen bigint[], p_for double precision, p_lowered bigint[] DEFAULT NULL::bigint[], OUT flags bigint[], OUT lowered bigint[], OUT unbroken boolean, OUT horizon bigint)
    -- Raise the flag of each slot. unbroken: all have stood since they were seen, so no job can have been missed; else horizon is the transaction id that must pass before the sleeper may trust notifications.
    RETURNS record LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path=pg_catalog
    md5 78db25600ce65a079d9599a4e3f7e52a

FUNCTION aiopgq.find_lanes(p_queues text[])
    -- The priorities that have ready jobs, for each queue, highest first, and the first place of each.
    RETURNS TABLE(queue text, priority smallint, place bigint) LANGUAGE plpgsql STABLE PARALLEL UNSAFE
    SET plan_cache_mode=force_generic_plan
    SET enable_seqscan=off
    SET enable_bitmapscan=off
    SET enable_sort=off
    SET jit=off
    md5 1bb661408245c2b97a857378d71cc626

FUNCTION aiopgq.fire_schedule(p_name text, p_since timestamp with time zone, p_seen timestamp with time zone, p_next_at timestamp with time zone, p_ids uuid[], p_moments timestamp with time zone[])
    -- Move a schedule on from the fire time that was seen, and enqueue a job for each moment: all of it or nothing. False: somebody was faster, or the schedule has changed.
    RETURNS boolean LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    md5 89da0a94884e3aa180c09e8eda7e5ebd

FUNCTION aiopgq.forget_gates(p_limit integer)
    -- Delete gates of keys that no job waits for or is inside.
    RETURNS integer LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET enable_seqscan=off
    SET enable_bitmapscan=off
    SET enable_sort=off
    SET jit=off
    md5 72e41c85697b95015ff589c3a5c9d037

FUNCTION aiopgq.forget_message(p_consumer text, p_message_id text)
    -- Let a message be received again. False: it was not received.
    RETURNS boolean LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path=pg_catalog
    SET enable_seqscan=off
    SET jit=off
    md5 0bf3685b8501fde416bb4479b38a808c

FUNCTION aiopgq.forget_relay(p_relay uuid, p_beat bigint)
    -- Take a relay's shards from it: those whose holder has no row are free. With p_beat, only if that beat stands.
    RETURNS boolean LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path=pg_catalog
    md5 a65f799ae54214fdbb4be066768a1288

FUNCTION aiopgq.forget_workers(p_after double precision)
    RETURNS integer LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    md5 2461f53642189fcec2bce539e8117c81

FUNCTION aiopgq.free_events(p_relay uuid, p_limit integer)
    -- Put blocked events back into the line, lowest ids first, whose aggregate waits for no failed one any more.
    RETURNS integer LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path=pg_catalog
    SET enable_seqscan=off
    SET jit=off
    md5 c5f591ebeb5f5cff7568e8ae3b251bf8

FUNCTION aiopgq.free_known_jobs(p_tasks text[], p_limit integer)
    -- Put held jobs of tasks that a worker knows back into the line.
    RETURNS integer LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET enable_seqscan=off
    SET jit=off
    md5 f93dd1d3f1e3031fa5a3708c3598aa86

FUNCTION aiopgq.free_resumed_jobs(p_limit integer)
    -- Put jobs whose task is not paused any more back, in their order.
    RETURNS integer LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET enable_seqscan=off
    SET jit=off
    md5 146b0cc5bef5c669d5850392330ee97f

FUNCTION aiopgq.give_shards(p_relay uuid, p_shards integer[])
    RETURNS integer LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path=pg_catalog
    md5 ec01be1cca04f22b4339c5d00f8246f4

FUNCTION aiopgq.grant_producer(p_role text)
    -- Let a role enqueue, receive messages and add events, and nothing else: it sees neither jobs nor results. Only the owner of the schema can call it.
    RETURNS void LANGUAGE sql VOLATILE PARALLEL UNSAFE
    md5 806a1fff6328b7491245e9e1734f9fc9

FUNCTION aiopgq.grant_reader(p_role text)
    -- Let a role look at jobs and wait for results. Only the owner of the schema can call it.
    RETURNS void LANGUAGE sql VOLATILE PARALLEL UNSAFE
    md5 ea29e40669c66586f49899b57993e55c

FUNCTION aiopgq.grant_rights(p_role text, p_grantee text)
    -- Let a role into the schema, and give it what the table rights lists.
    RETURNS void LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET search_path=pg_catalog
    md5 ddf2f90bedd0fed2a16f06b871eadb6e

FUNCTION aiopgq.grant_worker(p_role text)
    -- Let a role do all that aiopgq does but migrate: it creates and alters nothing, and drops no more than days of the archive. Only the owner of the schema can call it.
    RETURNS void LANGUAGE sql VOLATILE PARALLEL UNSAFE
    md5 6de32adac31543440d7d95c017d3e091

FUNCTION aiopgq.heartbeat(p_worker uuid, p_draining boolean DEFAULT false, OUT alive boolean, OUT fleet integer, OUT cancelled uuid[], OUT drain boolean)
    -- One beat of an incarnation. alive = false: it was declared dead and must return as a new one. cancelled: its jobs that somebody wants cancelled. drain: it shall claim no more, finish, and end.
    RETURNS record LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    md5 4eb2ff927268e73f8856f6e960c61bf2

FUNCTION aiopgq.hold_events(p_relay uuid, p_ids bigint[], p_errors text[], p_delays double precision[], p_most integer)
    -- Note that events failed: to be tried again after a delay, or set aside once they failed p_most times (NULL: never).
    RETURNS TABLE(id bigint, held text) LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path=pg_catalog
    SET enable_seqscan=off
    SET jit=off
    md5 2302a46e1e2ed9fe82798a47aca8e093

FUNCTION aiopgq.hold_paused_jobs(p_limit integer)
    -- Take jobs of paused tasks out of the line, so that no claim reads them, and away from their limits, so that they take no room from others.
    RETURNS integer LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    md5 023fa5ed7c9bca98f1a4dc1a8ad7009b

FUNCTION aiopgq.hold_unknown_jobs(p_tasks text[], p_limit integer)
    -- Take jobs of tasks that no live worker knows out of the line.
    RETURNS integer LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    md5 628708886bdc333175b5beab94b91f97

FUNCTION aiopgq.horizon_passed(p_horizon bigint)
    RETURNS boolean LANGUAGE sql VOLATILE PARALLEL UNSAFE
    RETURN (((pg_snapshot_xmin(pg_current_snapshot()))::text)::bigint >= p_horizon)

FUNCTION aiopgq.key_mark(p_task text, p_key text)
    -- The advisory lock, shared and so never waited for, by which a transaction that wrote a key can be found.
    RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL UNSAFE
    RETURN hashtextextended((((('unique key'::text || chr(31)) || p_task) || chr(31)) || p_key), (0)::bigint)

FUNCTION aiopgq.key_writer(p_task text, p_key text)
    -- Tell which other transaction has written a key: pid, application_name, since; NULL if none is found.
    RETURNS jsonb LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path=pg_catalog
    md5 d88358ad14f7c3ac04fb3eeb44710a3d

FUNCTION aiopgq.knock(p_kind text, p_key text)
    -- A job has left those that are inside, or first in their order, in a transaction that may take its time: the next worker looks whether another may go in.
    RETURNS void LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET plan_cache_mode=force_generic_plan
    SET enable_seqscan=off
    SET enable_bitmapscan=off
    SET enable_sort=off
    SET jit=off
    md5 257dbae01adb4c2323e3559d99ce4d5d

FUNCTION aiopgq.leave_relays(p_flag bigint)
    -- Take down the flag of a relay that goes for good, and wake those who sleep by it.
    RETURNS void LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path=pg_catalog
    md5 4441f26c12c06703a484e45eff4b399e

FUNCTION aiopgq.leave_sleepers(p_slots integer[], p_flags bigint[], p_queues text[])
    -- Take down the flags of a sleeper that goes for good, and wake those who relied on them by a queue of each slot.
    RETURNS void LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path=pg_catalog
    md5 0b340ca1e1899c2598294112fa10df72

FUNCTION aiopgq.let_in(p_orders text[], p_limits text[])
    -- What every statement calls by which jobs leave: let in those that wait for them; or, in functions that people call in transactions of their own, knock, so that the next worker does it after the commit.
    RETURNS integer LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    md5 fa377992890e4083575f2ee95e12ddc3

FUNCTION aiopgq.let_in_by_limit(p_keys text[])
    -- Let jobs of each limit key in, higher priorities first, as many as there is room and as there are tokens.
    RETURNS integer LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET plan_cache_mode=force_generic_plan
    SET enable_seqscan=off
    SET enable_bitmapscan=off
    SET enable_sort=off
    SET enable_hashjoin=off
    SET enable_mergejoin=off
    SET jit=off
    md5 170acea625ca2a0dedb1a1e2640e3dcf

FUNCTION aiopgq.let_in_by_order(p_keys text[])
    -- Let the first job of each order key in, if none of them is inside and no dead letter stands before it.
    RETURNS integer LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET plan_cache_mode=force_generic_plan
    SET enable_seqscan=off
    SET enable_bitmapscan=off
    SET enable_sort=off
    SET enable_hashjoin=off
    SET enable_mergejoin=off
    SET jit=off
    md5 07ae2332bf5727367d627269fe138c0a

FUNCTION aiopgq.let_in_later()
    -- This transaction is somebody's own and may go on: those who wait for its jobs are let in when it has ended.
    RETURNS void LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    md5 fe81efc0d9946c2ff908d9e139fa83e8

FUNCTION aiopgq.let_in_stranded()
    -- The net below: let in jobs outside whose key has room, as a process that died between two statements leaves them.
    RETURNS integer LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET plan_cache_mode=force_generic_plan
    SET enable_seqscan=off
    SET enable_bitmapscan=off
    SET enable_sort=off
    SET enable_hashjoin=off
    SET enable_mergejoin=off
    SET jit=off
    md5 464fc84355b2d8f684fa7db5f321646d

FUNCTION aiopgq.limit_queues(p_names text[], p_running integer[], p_rates integer[], p_bursts integer[], p_pers double precision[], p_unlimited text[])
    -- Say what limits queues have; the last worker that starts is right.
    RETURNS void LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET enable_seqscan=off
    SET jit=off
    md5 4b526be902c04d31238712cd0c031101

FUNCTION aiopgq.limited_queues()
    RETURNS text[] LANGUAGE plpgsql STABLE PARALLEL UNSAFE
    md5 88eb02ccd81c4436d2cafe2a837ae794

FUNCTION aiopgq.lock_gates(p_kind text, p_keys text[])
    -- Lock the gates of keys in their order, and make those that are missing.
    RETURNS void LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET plan_cache_mode=force_generic_plan
    SET enable_seqscan=off
    SET enable_hashjoin=off
    SET enable_mergejoin=off
    SET jit=off
    md5 43dc34c38514a5fa993678bf99c40027

FUNCTION aiopgq.look_at_schedules(p_declared text[], p_passed_over text[], p_orphaned_after double precision, OUT due integer, OUT next_in double precision)
    -- How many schedules are due, and seconds until the next is; says that a live worker declares those named.
    RETURNS record LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    md5 e5a101d4f18dc7a7c9322ff972f9cd78

FUNCTION aiopgq.make_partitions(p_days integer)
    -- Make the missing partitions of the archive from yesterday to p_days ahead. Waits 50 ms for a lock at most, because those who settle wait behind it.
    RETURNS integer LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path=pg_catalog
    SET lock_timeout=50ms
    md5 a1b370c08eee0d7dd4499563d132747c

FUNCTION aiopgq.mark_jobs(p_ids uuid[], p_claims uuid[], p_elapsed double precision[], p_progress real[], p_stages text[], p_events integer[])
    -- Mark long runs as running, with their progress; returns those that are still ours.
    RETURNS TABLE(id uuid, cancel_requested boolean) LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET plan_cache_mode=force_generic_plan
    SET enable_seqscan=off
    SET enable_hashjoin=off
    SET enable_mergejoin=off
    SET jit=off
    md5 19195586051aed5ba5514a6c952793b5

FUNCTION aiopgq.mark_published(p_relay uuid, p_ids bigint[])
    -- Mark events that a broker has confirmed. Returns those that were still the relay's.
    RETURNS SETOF bigint LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path=pg_catalog
    SET plan_cache_mode=force_generic_plan
    SET enable_seqscan=off
    SET jit=off
    md5 bd218db516614c90260869961b477f15

FUNCTION aiopgq.milliseconds(p_moment timestamp with time zone)
    RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE STRICT
    RETURN ((EXTRACT(epoch FROM p_moment) * (1000)::numeric))::bigint

FUNCTION aiopgq.new_id()
    -- A UUID of version 7, as Python makes them: later ones sort later.
    RETURNS uuid LANGUAGE sql VOLATILE PARALLEL UNSAFE
    RETURN (encode(set_bit(set_bit(OVERLAY(uuid_send(gen_random_uuid()) PLACING SUBSTRING(int8send(((EXTRACT(epoch FROM clock_timestamp()) * (1000)::numeric))::bigint) FROM 3) FROM 1 FOR 6), (52)::bigint, 1), (53)::bigint, 1), 'hex'::text))::uuid

FUNCTION aiopgq.next_events(p_bounds bigint[], p_after bigint, p_limit integer, p_bytes bigint)
    -- The next events of each shard up to its bound, in order of id, at least one and else about p_bytes of them; blocked: one of its aggregate before it is held.
    RETURNS TABLE(id bigint, shard integer, blocked boolean, event_id uuid, aggregate_type text, aggregate_id text, event_type text, payload jsonb, headers jsonb, created_at timestamp with time zone, attempts integer) LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path=pg_catalog
    SET plan_cache_mode=force_generic_plan
    SET enable_seqscan=off
    SET enable_sort=off
    SET jit=off
    md5 f14ffe7168257cb16afb134d43968a6e

FUNCTION aiopgq.next_token(p_full_at timestamp with time zone, p_rate integer, p_burst integer, p_per double precision)
    -- When an empty bucket holds a token again.
    RETURNS timestamp with time zone LANGUAGE sql IMMUTABLE PARALLEL UNSAFE
    RETURN (p_full_at - make_interval(secs => ((((p_burst - 1))::double precision * p_per) / (p_rate)::double precision)))

FUNCTION aiopgq.not_below_empty(p_full_at timestamp with time zone, p_rate integer, p_burst integer, p_per double precision)
    -- When a bucket is full again, as far as its limit can say: after it was raised, or the clock was set back, p_full_at may be further away than an empty bucket needs.
    RETURNS timestamp with time zone LANGUAGE sql VOLATILE PARALLEL UNSAFE
    RETURN LEAST(p_full_at, (clock_timestamp() + make_interval(secs => (((p_burst)::double precision * p_per) / (p_rate)::double precision))))

FUNCTION aiopgq.number_event()
    RETURNS trigger LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path=pg_catalog
    md5 93a6c2308613edcb27e3d0e9b24bd5db

FUNCTION aiopgq.open_slots(p_queues text[], p_slots integer[])
    -- How many of its slots each queue may fill now, by its limits and pauses.
    RETURNS integer[] LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET plan_cache_mode=force_generic_plan
    SET enable_seqscan=off
    SET enable_hashjoin=off
    SET enable_mergejoin=off
    SET jit=off
    md5 74dc4b14079ab8dbbfb336c4e16326d7

FUNCTION aiopgq.outbox_events(p_status text, p_aggregate_type text, p_aggregate_id text, p_limit integer)
    -- List events, oldest first; p_status: unpublished, waiting, retry, blocked, set aside, published, skipped, NULL any.
    RETURNS TABLE(id bigint, event_id uuid, status text, aggregate_type text, aggregate_id text, event_type text, payload jsonb, headers jsonb, created_at timestamp with time zone, published_at timestamp with time zone, retry_at timestamp with time zone, attempts integer, last_error text) LANGUAGE plpgsql STABLE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path=pg_catalog
    md5 3bf439688f47f5e8121e875feb6d150c

FUNCTION aiopgq.outbox_lag(OUT unpublished bigint, OUT oldest_seconds double precision, OUT retrying bigint, OUT blocked bigint, OUT set_aside bigint, OUT relays bigint)
    -- How far relays are behind: events to be published, the age of the oldest (NULL: none), those that failed, those blocked behind them, those set aside, and the relays that seem to live.
    RETURNS record LANGUAGE plpgsql STABLE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path=pg_catalog
    SET enable_seqscan=off
    SET jit=off
    md5 69a40a98bae987fded7846a7b1ab3218

FUNCTION aiopgq.outbox_lock()
    RETURNS integer LANGUAGE plpgsql STABLE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path=pg_catalog
    md5 081e0f47a4c1d7cf07478d73123478a8

FUNCTION aiopgq.pause_queue(p_queue text)
    -- No job of the queue is claimed from now on; false if it was paused already.
    RETURNS boolean LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET enable_seqscan=off
    SET jit=off
    md5 b115ed59a0a4e35e78633fd1fa664e7c

FUNCTION aiopgq.pause_task(p_task text)
    -- No job of the task is claimed from now on; hold_paused_jobs takes those in line out of it.
    RETURNS boolean LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET enable_seqscan=off
    SET jit=off
    md5 c9756ec3a718e8875ad4f0625e211903

FUNCTION aiopgq.paused_names()
    RETURNS text[] LANGUAGE plpgsql STABLE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path=pg_catalog
    md5 d8c56c5c783ff0b2c37fa93acb9b692c

FUNCTION aiopgq.promote_jobs(p_from timestamp with time zone, p_limit integer, p_tasks text[], OUT promoted integer, OUT reached timestamp with time zone, OUT next_in double precision)
    -- Give up to p_limit due jobs a place in line, and let in those that have arrived outside. next_in: seconds until the next one is due, or a token is; NULL if none waits.
    RETURNS record LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET plan_cache_mode=force_generic_plan
    SET enable_seqscan=off
    SET enable_bitmapscan=off
    SET enable_sort=off
    SET enable_hashjoin=off
    SET enable_mergejoin=off
    SET jit=off
    md5 78400582de541c77bbeeed491cad8b46

FUNCTION aiopgq.prune_events(p_retention double precision, p_limit integer, p_unpublished boolean DEFAULT false)
    -- Delete up to p_limit events published longer ago than p_retention seconds; with p_unpublished those added so long ago that no relay publishes, because something reads them from the log of changes.
    RETURNS integer LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path=pg_catalog
    SET enable_seqscan=off
    SET jit=off
    md5 5782058a0445dd2fa4ba5c29cd4d4abb

FUNCTION aiopgq.prune_holds(p_limit integer)
    -- Delete up to p_limit holds whose period is over.
    RETURNS integer LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET enable_seqscan=off
    SET jit=off
    md5 89072d84a0a49e4d6f15439f87a0c080

FUNCTION aiopgq.prune_inbox(p_window double precision, p_after timestamp with time zone, p_limit integer, OUT pruned integer, OUT up_to timestamp with time zone)
    -- Delete up to p_limit messages received more than p_window seconds ago and not before p_after. The next batch begins at up_to: what was deleted before it stays in the index as long as anybody might still see it.
    RETURNS record LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path=pg_catalog
    SET enable_seqscan=off
    SET jit=off
    md5 16d29d887405ade04092fb0b7b662dea

FUNCTION aiopgq.purge_dead_letters(p_ids uuid[])
    -- Delete dead letters for good; those they stood before go on.
    RETURNS SETOF uuid LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET enable_seqscan=off
    SET jit=off
    md5 ef5c7d0e7911d5ac9916ebe8fe632e5c

FUNCTION aiopgq.raise_flag(p_flag regclass, p_until bigint)
    RETURNS bigint LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path=pg_catalog
    md5 8b981721a6603c6d5154c9ec8b839d71

FUNCTION aiopgq.receive_message(p_consumer text, p_message_id text, p_timeout double precision DEFAULT 10)
    -- Record a message in the transaction of its effect. True: do the effect; false: it was done before. Waits for a transaction that is receiving the same message, p_timeout seconds at most.
    RETURNS boolean LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET search_path=pg_catalog
    md5 7fda0bb52f903784305f15f602485d7b

FUNCTION aiopgq.receive_message_within(p_consumer text, p_message_id text, p_timeout double precision, OUT first boolean, OUT held_by integer[])
    -- Record a message in the transaction of its effect. first: do the effect; false: it was done before; NULL: another transaction has received it and not ended within p_timeout seconds (NULL waits for ever), and held_by are the processes it may be. Nothing of it aborts the transaction.
    RETURNS record LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path=pg_catalog
    SET lock_timeout=0
    md5 1c90347ab32329ee6684900ec36311aa

FUNCTION aiopgq.recover_stale_jobs(p_worker uuid, p_keep boolean DEFAULT true)
    -- Look at the beats of all workers once, and take the jobs of those whose beat this one has itself seen unchanged for their whole lease, call after call, a third of the lease apart at most. Returns how many jobs went back.
    RETURNS integer LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    md5 69def1b3ce2b63a972c24eff3b73f630

FUNCTION aiopgq.register_relay(p_id uuid, p_name text, p_host text, p_pid integer, p_lease double precision)
    RETURNS void LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path=pg_catalog
    md5 a2670a46822efd65b65558295307a137

FUNCTION aiopgq.register_worker(p_id uuid, p_parent uuid, p_name text, p_host text, p_pid integer, p_version text, p_queues text[], p_tasks text[], p_concurrency integer, p_lease double precision, p_backend_pids integer[])
    RETURNS void LANGUAGE sql VOLATILE PARALLEL UNSAFE
    md5 50303f0a8b11204499f55268f2007164

FUNCTION aiopgq.register_worker(p_name text, p_queues text[], p_tasks text[], p_concurrency integer DEFAULT 1, p_lease interval DEFAULT '00:01:00'::interval, p_pid integer DEFAULT 0)
    -- Announce a worker in another language; returns its id, which is never used again. It beats at least four times a lease.
    RETURNS uuid LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    md5 dae3af0d427963619e19354b999946c8

FUNCTION aiopgq.relay_beat(p_relay uuid, OUT alive boolean, OUT relays integer)
    -- One beat. alive = false: others took its shards. relays: how many seem to live, to share the work by.
    RETURNS record LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path=pg_catalog
    md5 86bb235f5edec6ef545736bd60c1e721

FUNCTION aiopgq.relay_beats()
    RETURNS TABLE(id uuid, name text, beat bigint, lease double precision) LANGUAGE plpgsql STABLE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path=pg_catalog
    md5 8659b2817efd36ab4e5a5a2cfe6841bb

FUNCTION aiopgq.renew_grants()
    -- The last line of a migration that adds functions: nothing for everybody, what they need for those granted before.
    RETURNS void LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET search_path=pg_catalog
    md5 f87f6e0d59a55db568425019d743d00c

FUNCTION aiopgq.replace_job(p_task text, p_key text, p_debounce boolean, p_args jsonb, p_headers jsonb, p_priority smallint, p_run_at timestamp with time zone, p_max_delay double precision, p_limit_key text, p_order_key text, p_order_blocks boolean)
    -- Give the pending job of a key other arguments and another moment, or (debounce) a later moment only; NULL if there is none, if it is claimed, or if somebody has locked it.
    RETURNS uuid LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET plan_cache_mode=force_generic_plan
    SET enable_seqscan=off
    SET jit=off
    md5 8d6d92cab13460c10bb9623d485c3769

FUNCTION aiopgq.replay_dead_letters(p_ids uuid[])
    -- Make dead letters pending jobs again, with all their attempts and their history. keyed_by: another job has its unique key, so this one stays a dead letter.
    RETURNS TABLE(id uuid, keyed_by uuid) LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET lock_timeout=5s
    SET plan_cache_mode=force_generic_plan
    SET enable_seqscan=off
    SET enable_hashjoin=off
    SET enable_mergejoin=off
    SET jit=off
    md5 2cc7bda295d88736f4759104a671fcbe

FUNCTION aiopgq.replayed_as(p_order_key text, p_limit_key text)
    -- How a replayed dead letter is held until it is let in.
    RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN (p_order_key IS NOT NULL) THEN 'order'::text WHEN (p_limit_key IS NOT NULL) THEN 'new limit'::text ELSE NULL::text END

FUNCTION aiopgq.report_progress(p_id uuid, p_claim uuid, p_percent double precision, p_stage text DEFAULT NULL::text, OUT owned boolean, OUT cancel_requested boolean)
    -- Say how far a run is. owned = false: the job belongs to somebody else, so stop; cancel_requested: end by cancel_job.
    RETURNS record LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET plan_cache_mode=force_generic_plan
    SET enable_seqscan=off
    SET jit=off
    md5 f29fe4216e99411594fa9def3f4b3d7b

FUNCTION aiopgq.reschedule_jobs(p_ids uuid[], p_claims uuid[], p_delays double precision[], p_refunds boolean[], p_reasons text[], p_errors text[], p_keep boolean)
    -- The way back to pending: retry (an error, no refund), snooze and release (refund gives the attempt back). A delay that is NULL leaves a job its place: it has not begun. A job whose cancel was requested is archived as cancelled instead.
    RETURNS SETOF uuid LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET plan_cache_mode=force_generic_plan
    SET enable_seqscan=off
    SET enable_hashjoin=off
    SET enable_mergejoin=off
    SET jit=off
    md5 478d60937f58b3d259078999384c25bd

FUNCTION aiopgq.rescue_orphans(p_keep boolean)
    -- Take the jobs whose incarnation is dead or unknown: claims that were committed after their worker was given up.
    RETURNS integer LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET enable_seqscan=off
    SET jit=off
    md5 f0b7b97993b87bc82091e6cb427a1a03

FUNCTION aiopgq.rescue_worker(p_worker uuid, p_beat bigint, p_keep boolean)
    -- Declare an incarnation dead if its beat still stands at p_beat, and take its jobs; NULL if it has beaten since.
    RETURNS integer LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    md5 8cece37ccf50dc4d572d9341cbc353eb

FUNCTION aiopgq.resume_queue(p_queue text)
    -- End the pause of a queue and wake its workers; false if it was not paused.
    RETURNS boolean LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET enable_seqscan=off
    SET jit=off
    md5 bf1b4191c01620225406c3bbcbf814c5

FUNCTION aiopgq.resume_task(p_task text)
    -- End the pause of a task; free_resumed_jobs puts its jobs back into the line. False if it was not paused.
    RETURNS boolean LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET enable_seqscan=off
    SET jit=off
    md5 62a939b034735adc2a6fed24a4e712c7

FUNCTION aiopgq.retire_worker(p_worker uuid)
    RETURNS void LANGUAGE sql VOLATILE PARALLEL UNSAFE
    md5 4c5db70a0beb652d4be20cb89a8a6d6d

FUNCTION aiopgq.retry_events(p_event_ids uuid[])
    -- Let failed events be tried at once, and those set aside return to the line. NULL: all of them.
    RETURNS SETOF uuid LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path=pg_catalog
    SET enable_seqscan=off
    SET jit=off
    md5 cde2cb95ef1212a19d5a3102e31db18b

FUNCTION aiopgq.retrying_events(p_relay uuid, p_limit integer)
    -- Events of a relay that failed, and the seconds until they are tried again, those that are due first.
    RETURNS TABLE(id bigint, shard integer, wait double precision, event_id uuid, aggregate_type text, aggregate_id text, event_type text, payload jsonb, headers jsonb, created_at timestamp with time zone, attempts integer) LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path=pg_catalog
    SET enable_seqscan=off
    SET jit=off
    md5 c0107dd576f87d1582e964ee41cefdc4

FUNCTION aiopgq.return_job(p_id uuid, p_claim uuid, p_delay interval, p_refund boolean, p_reason text, p_error text)
    -- The way back to pending for one job, what fail_job and snooze_job share. Returns the status it has now.
    RETURNS text LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET plan_cache_mode=force_generic_plan
    SET enable_seqscan=off
    SET jit=off
    md5 900ffae4170cf2e29aa5b202ba731441

FUNCTION aiopgq.run_lock(p_id uuid, p_claim uuid)
    -- The advisory lock that the transaction of a run holds, so that its backend can be found, through a pooler too.
    RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL UNSAFE
    RETURN hashtextextended(((p_id)::text || (p_claim)::text), (0)::bigint)

FUNCTION aiopgq.run_schedule(p_name text, p_id uuid, p_moment timestamp with time zone DEFAULT NULL::timestamp with time zone)
    -- Enqueue a job of a schedule for a moment, now by default; its fire times stay as they are. False: there is none.
    RETURNS boolean LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    md5 31bd31c482a02f215602a8777cb9393f

FUNCTION aiopgq.see_beats(p_observer uuid)
    -- Take a reading of all beats for an observer; returns the workers it has itself seen silent for their whole lease.
    RETURNS TABLE(worker uuid, beat bigint) LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path=pg_catalog
    md5 f4abce6092fd569476d09f764b964149

FUNCTION aiopgq.set_schedule(p_name text, p_declared boolean, p_cron text, p_every double precision, p_timezone text, p_misfire text, p_misfire_window double precision, p_task text, p_args jsonb, p_queue text, p_priority smallint, p_max_attempts integer, p_timeout double precision, p_headers jsonb, p_orphaned_after double precision, p_limit_key text DEFAULT NULL::text, p_order_key text DEFAULT NULL::text, p_order_blocks boolean DEFAULT NULL::boolean)
    -- Make or change a schedule; a pause stays. Refused, and said, where code declares the name and p_declared is false, or the other way round.
    RETURNS text LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    md5 6b9504b0acebd2b640f94d2dcde30def

FUNCTION aiopgq.skip_events(p_event_ids uuid[])
    -- Give up events that are not published yet; what waits behind them goes on. They are kept like published ones.
    RETURNS SETOF uuid LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path=pg_catalog
    SET enable_seqscan=off
    SET jit=off
    md5 aff3cb2ff4f792bd6faa5ca881d1091c

FUNCTION aiopgq.slot(p_queue text)
    -- The slot of sleepers a queue belongs to; workers compute the same in Python.
    RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE STRICT
    RETURN (get_byte(sha256(convert_to(p_queue, 'UTF8'::name)), 0) & 15)

FUNCTION aiopgq.snooze_job(p_id uuid, p_claim uuid, p_delay interval)
    -- Run it again later, without spending the attempt; with a delay of zero it is released. Returns as fail_job does.
    RETURNS text LANGUAGE sql VOLATILE PARALLEL UNSAFE
    md5 44db66060dd3dc536b998cd78b96e800

FUNCTION aiopgq.spend(p_full_at timestamp with time zone, p_tokens integer, p_rate integer, p_per double precision)
    -- When a bucket is full again, after so many tokens are taken.
    RETURNS timestamp with time zone LANGUAGE sql VOLATILE PARALLEL UNSAFE
    RETURN (GREATEST(p_full_at, clock_timestamp()) + make_interval(secs => (((p_tokens)::double precision * p_per) / (p_rate)::double precision)))

FUNCTION aiopgq.spend_tokens(p_worker uuid, p_claim uuid)
    RETURNS void LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET enable_seqscan=off
    SET jit=off
    md5 612f735149e94b01b9fdc510d59e226a

FUNCTION aiopgq.still_claimed(p_id uuid, p_claim uuid, p_terminate boolean)
    -- Tell whether a run still owns its job, once the transaction that may have settled it has ended. p_terminate: end that transaction, because its client has lost the connection.
    RETURNS boolean LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET plan_cache_mode=force_generic_plan
    SET enable_seqscan=off
    SET jit=off
    SET lock_timeout=1s
    md5 cce2773a5b18dd3eb1ecb8f358f4c2e1

FUNCTION aiopgq.take_back_jobs(p_worker uuid, p_keep boolean)
    -- Take all jobs of an incarnation: back to pending with backoff, or to the dead letters if no attempt is left.
    RETURNS integer LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    SET enable_seqscan=off
    SET jit=off
    md5 6a4fc19dd8b2779d9bb5d85ef9ab0a22

FUNCTION aiopgq.take_shards(p_relay uuid, p_limit integer)
    RETURNS SETOF integer LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path=pg_catalog
    md5 03ebabb1102e231673658a1d389805ca

FUNCTION aiopgq.tell_waiters(p_ids uuid[])
    -- Announce finished jobs while somebody waits for results.
    RETURNS void LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path=pg_catalog
    md5 96a4d00aa5a88a4cdce8c48d2bd824cb

FUNCTION aiopgq.tokens(p_full_at timestamp with time zone, p_rate integer, p_burst integer, p_per double precision)
    -- How many jobs may start now, of a bucket that is full again at p_full_at.
    RETURNS integer LANGUAGE sql VOLATILE PARALLEL UNSAFE
    RETURN (floor(((((p_burst)::numeric + 0.000001))::double precision - ((GREATEST((0)::double precision, (EXTRACT(epoch FROM (GREATEST(p_full_at, clock_timestamp()) - clock_timestamp())))::double precision) * (p_rate)::double precision) / p_per))))::integer

FUNCTION aiopgq.unserved_jobs(p_limit integer)
    -- Due jobs, among the first p_limit, that no live worker would claim.
    RETURNS TABLE(queue text, task text, jobs bigint, known boolean) LANGUAGE sql STABLE PARALLEL UNSAFE
    md5 54a5fc836147500169c65645763edf4d

FUNCTION aiopgq.wake_after_insert()
    RETURNS trigger LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path=pg_catalog
    md5 f444d8fe8bcc8fab2bf312d177a6e605

FUNCTION aiopgq.wake_queue(p_queue text, p_due timestamp with time zone)
    -- The one place that announces a pending job: notify if somebody sleeps beyond the moment it is due.
    RETURNS void LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path=pg_catalog
    md5 92cbcbf6182763106b8288bc37a2274b

FUNCTION aiopgq.wake_queues(p_queues text[])
    -- Wake whoever sleeps on these queues: jobs may start there.
    RETURNS void LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
    md5 5e50ccd78d6ad7c91502d7fc72131bad

FUNCTION aiopgq.wake_relays()
    RETURNS trigger LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path=pg_catalog
    md5 f369ba7a9f59421b46864c93cc64891d

FUNCTION aiopgq.wake_up(p_slot integer, p_flag bigint)
    -- Lower the flag of a slot if it still holds the value its sleeper gave it; tell whether it did.
    RETURNS boolean LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
    SET search_path=pg_catalog
    md5 e07439cebfe4f21ad236a0392b8d6e5b
