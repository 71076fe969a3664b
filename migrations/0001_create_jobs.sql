-- 0001: the tables: unfinished jobs, the archive, dead letters, workers
-- phase: before
-- oldest code: 1
-- locks: none; everything is new

CREATE SEQUENCE aiopgq.places AS bigint;
COMMENT ON SEQUENCE aiopgq.places IS 'A job draws its place in line each time it becomes ready.';

-- Wide fixed columns first, so that no row pays for padding; what is mostly NULL costs one bit.
CREATE TABLE aiopgq.jobs (
    id uuid NOT NULL CONSTRAINT jobs_key PRIMARY KEY,
    worker_id uuid,
    claim_id uuid,
    place bigint,
    run_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    claimed_at timestamptz,
    started_at timestamptz,
    timeout interval,
    attempts integer NOT NULL DEFAULT 0,
    max_attempts integer NOT NULL DEFAULT 12,
    events_count integer NOT NULL DEFAULT 0,
    progress real,
    priority smallint NOT NULL DEFAULT 100,
    cancel_requested boolean NOT NULL DEFAULT false,
    status text NOT NULL DEFAULT 'pending',
    queue text NOT NULL DEFAULT 'default',
    task text NOT NULL,
    args jsonb NOT NULL DEFAULT '{}',
    headers jsonb,
    held text,
    current_stage text,
    last_error text,
    errors jsonb,
    unique_key text,
    limit_key text,
    CONSTRAINT status_is_unfinished CHECK (status IN ('pending', 'claimed', 'running')),
    CONSTRAINT only_a_claimed_job_has_a_claim_id CHECK ((status = 'pending') = (claim_id IS NULL)),
    CONSTRAINT only_a_claimed_job_has_a_worker CHECK ((claim_id IS NULL) = (worker_id IS NULL)),
    -- Moments and lengths that every client can read: a row that none can is claimed for ever.
    CONSTRAINT run_at_is_between_1900_and_9999
        CHECK (run_at >= '1900-01-01 00:00:00+00' AND run_at < '9999-01-01 00:00:00+00'),
    CONSTRAINT created_at_is_between_1900_and_9999
        CHECK (created_at >= '1900-01-01 00:00:00+00' AND created_at < '9999-01-01 00:00:00+00'),
    CONSTRAINT timeout_is_at_most_a_hundred_years CHECK (timeout BETWEEN '0' AND '36500 days'),
    CONSTRAINT queue_has_1_to_200_bytes CHECK (octet_length(queue) BETWEEN 1 AND 200),
    CONSTRAINT task_has_1_to_200_bytes CHECK (octet_length(task) BETWEEN 1 AND 200),
    CONSTRAINT unique_key_has_1_to_1000_bytes CHECK (octet_length(unique_key) BETWEEN 1 AND 1000),
    -- As much as fits into an index: a longer one would fail not here but in the worker that lets it in, again and again.
    CONSTRAINT limit_key_has_1_to_2000_bytes CHECK (octet_length(limit_key) BETWEEN 1 AND 2000),
    CONSTRAINT args_is_an_object CHECK (jsonb_typeof(args) = 'object'),
    CONSTRAINT headers_is_an_object CHECK (jsonb_typeof(headers) = 'object'),
    CONSTRAINT max_attempts_is_at_least_one CHECK (max_attempts >= 1),
    CONSTRAINT attempts_can_grow CHECK (attempts BETWEEN 0 AND 2000000000),
    CONSTRAINT errors_is_an_array CHECK (jsonb_typeof(errors) = 'array'),
    CONSTRAINT progress_is_a_percentage CHECK (progress BETWEEN 0 AND 100)
) WITH (
    -- A claim rewrites the row once and changes an indexed column, so it cannot be HOT; the spare room keeps
    -- the new version and later progress marks on the same page.
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_insert_threshold = -1,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0,
    autovacuum_analyze_threshold = 200000
);
COMMENT ON COLUMN aiopgq.jobs.place IS 'Position in line; NULL while the job waits for run_at.';
COMMENT ON COLUMN aiopgq.jobs.held IS 'NULL = free; else why it may not be claimed.';
COMMENT ON COLUMN aiopgq.jobs.claim_id IS 'The fence: one fresh value per claim batch; every write to a claimed job names it.';
COMMENT ON COLUMN aiopgq.jobs.worker_id IS 'The incarnation that owns the job; never reused.';
COMMENT ON COLUMN aiopgq.jobs.attempts IS 'Runs begun; spent when claimed, given back on release and snooze.';
COMMENT ON COLUMN aiopgq.jobs.timeout IS 'NULL = the timeout of the task; zero = none.';

CREATE INDEX jobs_line ON aiopgq.jobs (queue, priority DESC, place)
    WHERE status = 'pending' AND held IS NULL AND place IS NOT NULL;
CREATE INDEX jobs_due ON aiopgq.jobs (run_at)
    WHERE status = 'pending' AND held IS NULL AND place IS NULL;
CREATE INDEX jobs_worker ON aiopgq.jobs (worker_id) WHERE worker_id IS NOT NULL;
CREATE UNIQUE INDEX jobs_unique ON aiopgq.jobs (unique_key, task) WHERE unique_key IS NOT NULL;
CREATE INDEX jobs_held ON aiopgq.jobs (held, task) WHERE held IS NOT NULL;

CREATE TABLE aiopgq.archive (
    id uuid NOT NULL,
    worker_id uuid,
    run_at timestamptz NOT NULL,
    created_at timestamptz NOT NULL,
    claimed_at timestamptz,
    started_at timestamptz,
    completed_at timestamptz NOT NULL,
    attempts integer NOT NULL,
    max_attempts integer NOT NULL,
    events_count integer NOT NULL,
    progress real,
    priority smallint NOT NULL,
    status text NOT NULL,
    queue text NOT NULL,
    task text NOT NULL,
    args jsonb NOT NULL,
    headers jsonb,
    current_stage text,
    last_error text,
    errors jsonb,
    result jsonb,
    CONSTRAINT status_is_completed_or_cancelled CHECK (status IN ('completed', 'cancelled'))
) PARTITION BY RANGE (completed_at);
COMMENT ON TABLE aiopgq.archive IS 'Completed and cancelled jobs, a partition a UTC day of completed_at.';
CREATE INDEX archive_key ON aiopgq.archive (id);

CREATE TABLE aiopgq.dead_letters (
    id uuid NOT NULL CONSTRAINT dead_letters_key PRIMARY KEY,
    worker_id uuid,
    run_at timestamptz NOT NULL,
    created_at timestamptz NOT NULL,
    claimed_at timestamptz,
    started_at timestamptz,
    failed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    timeout interval,
    attempts integer NOT NULL,
    max_attempts integer NOT NULL,
    events_count integer NOT NULL,
    progress real,
    priority smallint NOT NULL,
    queue text NOT NULL,
    task text NOT NULL,
    args jsonb NOT NULL,
    headers jsonb,
    current_stage text,
    last_error text,
    errors jsonb,
    limit_key text
);
COMMENT ON TABLE aiopgq.dead_letters IS 'Failed jobs with all their errors, until replayed or purged.';
CREATE INDEX dead_letters_failed_at ON aiopgq.dead_letters (failed_at);

CREATE TABLE aiopgq.workers (
    id uuid NOT NULL CONSTRAINT workers_key PRIMARY KEY,
    parent uuid,
    beat bigint NOT NULL DEFAULT 0,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    heartbeat_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    dead_at timestamptz,
    lease interval NOT NULL,
    pid integer NOT NULL,
    concurrency integer NOT NULL,
    draining boolean NOT NULL DEFAULT false,
    name text NOT NULL,
    host text NOT NULL,
    version text NOT NULL,
    queues text[] NOT NULL,
    tasks text[] NOT NULL,
    backend_pids integer[] NOT NULL DEFAULT '{}'
) WITH (fillfactor = 50);
COMMENT ON TABLE aiopgq.workers IS 'A row per incarnation of a worker; its beat, never its jobs, says that it lives.';

CREATE VIEW aiopgq.all_jobs AS
SELECT
    id, queue, task, status, priority, attempts, max_attempts, created_at, run_at, claimed_at, started_at,
    NULL::timestamptz AS finished_at, worker_id, progress, current_stage, events_count, held, cancel_requested,
    args, headers, NULL::jsonb AS result, last_error, errors
FROM aiopgq.jobs
UNION ALL
SELECT
    id, queue, task, status, priority, attempts, max_attempts, created_at, run_at, claimed_at, started_at,
    completed_at, worker_id, progress, current_stage, events_count, NULL, false,
    args, headers, result, last_error, errors
FROM aiopgq.archive
UNION ALL
SELECT
    id, queue, task, 'failed', priority, attempts, max_attempts, created_at, run_at, claimed_at, started_at,
    failed_at, worker_id, progress, current_stage, events_count, NULL, false,
    args, headers, NULL, last_error, errors
FROM aiopgq.dead_letters;
COMMENT ON VIEW aiopgq.all_jobs IS 'Every job that is still known, whatever table holds it.';
