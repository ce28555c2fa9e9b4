-- The core: tasks, their runs and history, workers and their beats, events and reports.
-- Times are microseconds: *_at is UTC wall clock, *_mono is that of the clock named beside it,
-- which can not be set: the CLOCK_MONOTONIC of one boot, or the time of the database server.

CREATE TABLE everbeat_meta (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE everbeat_tasks (
    seq            INTEGER PRIMARY KEY AUTOINCREMENT,
    id             TEXT    NOT NULL UNIQUE,
    name           TEXT    NOT NULL,
    queue          TEXT    NOT NULL,
    priority       INTEGER NOT NULL,
    status         TEXT    NOT NULL DEFAULT 'PENDING' CHECK (status IN ({states})),
    fence          INTEGER NOT NULL DEFAULT 0,
    worker_id      TEXT,
    attempt        INTEGER NOT NULL DEFAULT 0,
    free_attempts  INTEGER NOT NULL DEFAULT 0,
    max_attempts   INTEGER NOT NULL DEFAULT 1,
    crash_count    INTEGER NOT NULL DEFAULT 0,
    lost_count     INTEGER NOT NULL DEFAULT 0,
    dispatch_count INTEGER NOT NULL DEFAULT 0,
    solo           INTEGER NOT NULL DEFAULT 0,
    quarantined    INTEGER NOT NULL DEFAULT 0,
    created_at     INTEGER NOT NULL,
    run_at         INTEGER NOT NULL,
    due_at         INTEGER,              -- set while the task waits for a time; NULL once it is ready
    started_at     INTEGER,
    finished_at    INTEGER,
    counted        INTEGER NOT NULL DEFAULT 0,    -- its queue had a limit when it was claimed, or got one since
    waiting_for    TEXT,                 -- why a PENDING task is not ready, if not for a time
    unique_key     TEXT,
    exclusive_key  TEXT,
    good_until     INTEGER,              -- not started by then, it has expired
    cancel_requested_at INTEGER,         -- somebody asked for its end while it ran
    policy         TEXT,
    progress       TEXT,                 -- what the last run says of itself: done, total, note
    error_code     TEXT,
    error_message  TEXT,
    error          TEXT,
    workflow_id    TEXT,                 -- it is a node of this workflow
    node           INTEGER,
    held           INTEGER NOT NULL DEFAULT 0,    -- 1: its workflow is paused
    refs           TEXT,                 -- JSON: [where in args, in bytes, the result of which node belongs]
    args           BLOB    NOT NULL,
    result         BLOB
) /*pg: WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0) */;

-- Claims read these entries in order and nothing else, so neither backlog nor history slows them.
CREATE INDEX everbeat_tasks_ready ON everbeat_tasks (queue, name, priority, seq)
    WHERE status = 'PENDING' AND due_at IS NULL AND waiting_for IS NULL;
CREATE INDEX everbeat_tasks_due ON everbeat_tasks (due_at, queue)
    WHERE status = 'PENDING' AND due_at IS NOT NULL;
CREATE INDEX everbeat_tasks_good ON everbeat_tasks (good_until)
    WHERE status = 'PENDING' AND good_until IS NOT NULL;
CREATE INDEX everbeat_tasks_owned ON everbeat_tasks (worker_id/*pg: , seq */)
    WHERE status IN ('CLAIMED', 'RUNNING');
-- Only tasks of queues with a limit are in it: the others do not pay for it.
CREATE INDEX everbeat_tasks_counted ON everbeat_tasks (queue)
    WHERE counted = 1 AND status IN ('CLAIMED', 'RUNNING');
-- For counting and for retention: one entry per ended task, added at the end of its group.
CREATE INDEX everbeat_tasks_ended ON everbeat_tasks (queue, status, finished_at)
    WHERE finished_at IS NOT NULL;
-- Said so that nobody who looks for the line of a key is led here.
CREATE INDEX everbeat_tasks_waiting ON everbeat_tasks (queue)
    WHERE status = 'PENDING' AND due_at IS NULL AND length(waiting_for) > 0;
-- One task of a name and key that has not ended: what keeps the promise, and what finds the holder.
CREATE UNIQUE INDEX everbeat_tasks_unique ON everbeat_tasks (name, unique_key)
    WHERE unique_key IS NOT NULL AND status IN ('PENDING', 'CLAIMED', 'RUNNING');
-- Exclusive keys: who has the turn, at most one, and who stands in line for it, in order.
CREATE UNIQUE INDEX everbeat_tasks_turn ON everbeat_tasks (exclusive_key)
    WHERE exclusive_key IS NOT NULL AND waiting_for IS NULL AND due_at IS NULL
      AND status IN ('PENDING', 'CLAIMED', 'RUNNING');
CREATE INDEX everbeat_tasks_line ON everbeat_tasks (exclusive_key, priority, seq)
    WHERE exclusive_key IS NOT NULL AND waiting_for IS NOT NULL AND due_at IS NULL AND status = 'PENDING';
CREATE INDEX everbeat_tasks_quarantined ON everbeat_tasks (seq)
    WHERE quarantined = 1;

-- Queues need no row to be used: one is made when somebody pauses or limits a queue.
CREATE TABLE everbeat_queues (
    name            TEXT PRIMARY KEY,
    paused          INTEGER NOT NULL DEFAULT 0,
    paused_by       TEXT,                -- a person, or "config"
    max_concurrency INTEGER
) WITHOUT ROWID;

-- One row for each run that did not end in a result. Append-only.
CREATE TABLE everbeat_attempts (
    id            INTEGER PRIMARY KEY,
    task_id       TEXT    NOT NULL,
    attempt       INTEGER NOT NULL,
    fence         INTEGER NOT NULL,
    outcome       TEXT    NOT NULL,
    will_retry    INTEGER NOT NULL,
    billed        INTEGER NOT NULL,
    started_at    INTEGER,
    finished_at   INTEGER NOT NULL,
    error_code    TEXT,
    error_message TEXT,
    error         TEXT,
    worker_id     TEXT,
    hostname      TEXT,
    pid           INTEGER
);
CREATE INDEX everbeat_attempts_task ON everbeat_attempts (task_id);

-- Recovery, failure and manual changes: who, when, why. Append-only.
CREATE TABLE everbeat_history (
    id         INTEGER PRIMARY KEY,
    task_id    TEXT    NOT NULL,
    at         INTEGER NOT NULL,
    actor      TEXT    NOT NULL,
    change     TEXT    NOT NULL,
    old_status TEXT    NOT NULL,
    new_status TEXT    NOT NULL,
    reason     TEXT,
    attempt    INTEGER NOT NULL,
    fence      INTEGER NOT NULL,
    worker_id  TEXT
);
CREATE INDEX everbeat_history_task ON everbeat_history (task_id);

-- Outcomes that came after their ownership had ended. Nothing is thrown away.
CREATE TABLE everbeat_late_outcomes (
    id            INTEGER PRIMARY KEY,
    task_id       TEXT    NOT NULL,
    fence         INTEGER NOT NULL,
    attempt       INTEGER NOT NULL,
    worker_id     TEXT    NOT NULL,
    at            INTEGER NOT NULL,
    found_status  TEXT    NOT NULL,
    found_fence   INTEGER NOT NULL,
    result        BLOB,
    error_code    TEXT,
    error_message TEXT
);
CREATE INDEX everbeat_late_outcomes_task ON everbeat_late_outcomes (task_id);

CREATE TABLE everbeat_workers (
    id               TEXT PRIMARY KEY,
    name             TEXT    NOT NULL,
    status           TEXT    NOT NULL CHECK (status IN ('alive', 'dead', 'stopped')),
    hostname         TEXT    NOT NULL,
    boot_id          TEXT    NOT NULL,
    clock_id         TEXT    NOT NULL,    -- whose time beat_mono is
    pid              INTEGER NOT NULL,
    pid_started      INTEGER NOT NULL,
    pid_namespace    INTEGER NOT NULL,
    lock_path        TEXT    NOT NULL,
    lock_device      INTEGER NOT NULL,
    lock_inode       INTEGER NOT NULL,
    queues           TEXT,
    task_names       TEXT    NOT NULL,
    processes        INTEGER NOT NULL,
    async_slots      INTEGER NOT NULL,
    beat_interval_ms INTEGER NOT NULL,
    exclusive_lease_ms INTEGER NOT NULL,
    version          TEXT    NOT NULL,
    knows_schema     INTEGER NOT NULL DEFAULT 1,    -- the newest that its program can work with
    started_at       INTEGER NOT NULL,
    beat_at          INTEGER NOT NULL,
    beat_mono        INTEGER NOT NULL,
    beat_seq         INTEGER NOT NULL DEFAULT 0,
    ended_at         INTEGER,
    end_cause        TEXT,
    end_reason       TEXT
) /*pg: WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.1) */ WITHOUT ROWID;
CREATE INDEX everbeat_workers_alive ON everbeat_workers (id) WHERE status = 'alive';

CREATE TABLE everbeat_heartbeats (
    id        INTEGER PRIMARY KEY,
    task_id   TEXT    NOT NULL,
    sender_id TEXT    NOT NULL,
    role      TEXT    NOT NULL CHECK (role IN ('claimer', 'runner')),
    sent_at   INTEGER NOT NULL,
    hostname  TEXT    NOT NULL,
    pid       INTEGER NOT NULL,
    fence     INTEGER NOT NULL
);
CREATE INDEX everbeat_heartbeats_task ON everbeat_heartbeats (task_id, fence);

-- What each worker looked like, now and then.
CREATE TABLE everbeat_worker_states (
    id                INTEGER PRIMARY KEY,
    worker_id         TEXT    NOT NULL,
    snapshot_at       INTEGER NOT NULL,
    hostname          TEXT    NOT NULL,
    pid               INTEGER NOT NULL,
    worker_started_at INTEGER NOT NULL,
    processes         INTEGER NOT NULL,
    async_slots       INTEGER NOT NULL,
    queues            TEXT,
    tasks_running     INTEGER NOT NULL,
    tasks_claimed     INTEGER NOT NULL,
    tasks_completed   INTEGER NOT NULL,    -- since the worker started, as the two below
    tasks_failed      INTEGER NOT NULL,
    store_errors      INTEGER NOT NULL,
    memory_usage_mb   REAL    NOT NULL,    -- resident, of all its processes; pages they share are counted in each
    memory_percent    REAL    NOT NULL,    -- of the machine's
    cpu_percent       REAL    NOT NULL     -- of one processor, since the snapshot before
);
CREATE INDEX everbeat_worker_states_worker ON everbeat_worker_states (worker_id);

-- For how long the store has been written without a gap: judges read it, every beat maintains it.
CREATE TABLE everbeat_health (
    id                 INTEGER PRIMARY KEY CHECK (id = 1),
    clock_id            TEXT    NOT NULL,
    healthy_since_mono INTEGER NOT NULL,
    last_write_mono    INTEGER NOT NULL
) /*pg: WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.1) */;

-- What the wall clock was when it was last looked at, to see that somebody has set it.
CREATE TABLE everbeat_clock (
    id                INTEGER PRIMARY KEY CHECK (id = 1),
    clock_id           TEXT    NOT NULL,
    wall_offset       INTEGER NOT NULL,    -- ahead of CLOCK_MONOTONIC by so much
    steady_since_mono INTEGER NOT NULL
);

-- Names of waiting tasks that no living worker knows, and since when somebody has been looking.
CREATE TABLE everbeat_unknown (
    name       TEXT PRIMARY KEY,
    clock_id    TEXT    NOT NULL,
    since_mono INTEGER NOT NULL,
    seen_mono  INTEGER NOT NULL
) WITHOUT ROWID;

-- Who does what only one worker needs to do. A lease, never a lock: a frozen holder loses it.
CREATE TABLE everbeat_roles (
    role       TEXT PRIMARY KEY,
    worker_id  TEXT    NOT NULL,
    clock_id    TEXT    NOT NULL,
    until_mono INTEGER NOT NULL
) /*pg: WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.1) */ WITHOUT ROWID;

CREATE TABLE everbeat_events (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,    -- never given twice: who follows them remembers the last
    at            INTEGER NOT NULL,
    name          TEXT    NOT NULL,
    task_id       TEXT,
    worker_id     TEXT,
    facts         TEXT    NOT NULL,
    wanted        INTEGER NOT NULL DEFAULT 0            -- 1: somebody had subscribed when it happened; not addressed yet
);
CREATE INDEX everbeat_events_task ON everbeat_events (task_id) WHERE task_id IS NOT NULL;
CREATE INDEX everbeat_events_wanted ON everbeat_events (id) WHERE wanted = 1;

-- Which events an application wants to be told of: "*" is every one. It is known by the MODULE:APP of its workers.
CREATE TABLE everbeat_subscriptions (
    application TEXT    NOT NULL,
    event       TEXT    NOT NULL,
    since       INTEGER NOT NULL,
    seen_at     INTEGER NOT NULL,
    PRIMARY KEY (application, event)
) WITHOUT ROWID;

-- An event on its way to an application.
CREATE TABLE everbeat_deliveries (
    event_id      INTEGER NOT NULL,
    application   TEXT    NOT NULL,
    worker_id     TEXT,                                 -- who is telling it
    deliver_after INTEGER NOT NULL DEFAULT 0,           -- taken, or to be tried again, until then
    failures      INTEGER NOT NULL DEFAULT 0,           -- 10: given up
    failure       TEXT,
    delivered_at  INTEGER,
    PRIMARY KEY (event_id, application)
) WITHOUT ROWID;
CREATE INDEX everbeat_deliveries_due ON everbeat_deliveries (application, deliver_after, event_id)
    WHERE delivered_at IS NULL AND failures < 10;

-- Totals and moments that outlive the rows they were counted from.
CREATE TABLE everbeat_metrics (
    name   TEXT NOT NULL,
    labels TEXT NOT NULL,    -- a JSON object
    value  REAL NOT NULL,
    PRIMARY KEY (name, labels)
) /*pg: WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.1) */ WITHOUT ROWID;

CREATE TABLE everbeat_recovery_reports (
    id     INTEGER PRIMARY KEY,
    at     INTEGER NOT NULL,
    actor  TEXT    NOT NULL,
    report TEXT    NOT NULL
);

-- Workflows: what is to be done, and how far it is. Nested ones have rows of their own; all of a tree share root_id.
CREATE TABLE everbeat_workflows (
    id            TEXT    NOT NULL PRIMARY KEY,
    name          TEXT    NOT NULL,
    status        TEXT    NOT NULL CHECK (status IN ({workflow_states})),
    on_error      TEXT    NOT NULL CHECK (on_error IN ('FAIL', 'PAUSE', 'CONTINUE')),
    root_id       TEXT    NOT NULL,
    parent_id     TEXT,
    parent_node   INTEGER,
    is_map        INTEGER NOT NULL DEFAULT 0,
    outputs       TEXT    NOT NULL,      -- JSON: the nodes whose results are the result
    success       TEXT,                  -- JSON: the nodes that must complete; NULL: those that nothing tolerates
    digest        TEXT    NOT NULL,      -- of all that was asked for
    max_bytes     INTEGER NOT NULL,      -- of the arguments and of the result of a node
    nodes         INTEGER NOT NULL,
    nodes_left    INTEGER NOT NULL,      -- that have not ended
    error_node    TEXT,                  -- the first that failed and that nothing tolerates
    error_code    TEXT,
    error_message TEXT,
    paused_by     TEXT,                  -- a person, or "error"
    stuck         TEXT,                  -- why recovery could not mend it
    created_at    INTEGER NOT NULL,
    started_at    INTEGER,
    finished_at   INTEGER
) STRICT;
CREATE INDEX everbeat_workflows_root ON everbeat_workflows (root_id) WHERE parent_id IS NOT NULL;
CREATE INDEX everbeat_workflows_created ON everbeat_workflows (created_at, id);
-- Those that recovery looks through, and those that retention does; metrics count the latter without reading them.
CREATE INDEX everbeat_workflows_live ON everbeat_workflows (id)
    WHERE parent_id IS NULL AND (nodes_left > 0 OR finished_at IS NULL);
CREATE INDEX everbeat_workflows_ended ON everbeat_workflows (finished_at, status, parent_id)
    WHERE parent_id IS NULL AND finished_at IS NOT NULL;
-- Those that go on only when somebody sees to them, by the tree that waits for them.
CREATE INDEX everbeat_workflows_halted ON everbeat_workflows (root_id) WHERE status = 'PAUSED' OR stuck IS NOT NULL;

-- Nodes. One that is a task holds what its task will be made of; what the task does then is in everbeat_tasks alone.
CREATE TABLE everbeat_workflow_tasks (
    workflow_id   TEXT    NOT NULL,
    node          INTEGER NOT NULL,
    name          TEXT    NOT NULL,
    kind          TEXT    NOT NULL CHECK (kind IN ('task', 'map', 'workflow')),
    status        TEXT    NOT NULL CHECK (status IN ({node_states})),
    task_id       TEXT,                  -- known before its task is made, so that it can not be made twice
    child_id      TEXT,                  -- the workflow inside
    task_name     TEXT,
    queue         TEXT,
    priority      INTEGER,
    max_attempts  INTEGER,
    policy        TEXT,
    exclusive_key TEXT,
    good_until    INTEGER,
    delay_us      INTEGER NOT NULL DEFAULT 0,
    over          INTEGER,               -- of a map: the node whose result it runs over
    deps          INTEGER NOT NULL,      -- the nodes it waits for
    needed        INTEGER NOT NULL,      -- how many of them must complete
    is_partial    INTEGER NOT NULL DEFAULT 0,    -- 1: if so many can not, it has failed; 0: it is skipped
    deps_left     INTEGER NOT NULL,      -- that have not ended
    deps_ok       INTEGER NOT NULL DEFAULT 0,
    deps_failed   INTEGER NOT NULL DEFAULT 0,
    allow_failed  INTEGER NOT NULL DEFAULT 0,
    tolerated     INTEGER NOT NULL DEFAULT 0,    -- 1: its failure is not one of the workflow
    condition     TEXT,                  -- JSON
    takes         INTEGER NOT NULL DEFAULT 0,    -- so many results of others are in its arguments; 2 if one may be missing
    shape         TEXT,                  -- JSON: how to read its result
    error_code    TEXT,
    error_message TEXT,
    started_at    INTEGER,
    finished_at   INTEGER,
    result        BLOB,                  -- of a map or a nested workflow
    PRIMARY KEY (workflow_id, node)
) /*pg: WITH (fillfactor = 50) */ STRICT, WITHOUT ROWID;

-- What their tasks are called with. Apart from the nodes, whose rows are written again and again: those of a join of ten
-- thousand are large.
CREATE TABLE everbeat_workflow_calls (
    workflow_id TEXT    NOT NULL,
    node        INTEGER NOT NULL,
    refs        TEXT,                    -- JSON: [where in args, in bytes, the result of which node belongs]
    args        BLOB    NOT NULL,
    PRIMARY KEY (workflow_id, node)
) STRICT, WITHOUT ROWID;

-- Who waits for whom.
CREATE TABLE everbeat_workflow_edges (
    workflow_id TEXT    NOT NULL,
    node        INTEGER NOT NULL,
    next        INTEGER NOT NULL,
    PRIMARY KEY (workflow_id, node, next)
) STRICT, WITHOUT ROWID;

CREATE VIEW everbeat_tasks_readable AS
    SELECT seq, id, name, queue, priority, status, attempt, max_attempts, crash_count, lost_count, quarantined, fence,
           worker_id, strftime('%Y-%m-%d %H:%M:%f', created_at / 1e6, 'unixepoch') AS created_at,
           strftime('%Y-%m-%d %H:%M:%f', run_at / 1e6, 'unixepoch') AS run_at,
           strftime('%Y-%m-%d %H:%M:%f', started_at / 1e6, 'unixepoch') AS started_at,
           strftime('%Y-%m-%d %H:%M:%f', finished_at / 1e6, 'unixepoch') AS finished_at,
           waiting_for, workflow_id, node, error_code, error_message
      FROM everbeat_tasks;
CREATE VIEW everbeat_workers_readable AS
    SELECT id, name, status, hostname, pid, queues, processes, async_slots, version,
           strftime('%Y-%m-%d %H:%M:%f', started_at / 1e6, 'unixepoch') AS started_at,
           strftime('%Y-%m-%d %H:%M:%f', beat_at / 1e6, 'unixepoch') AS beat_at,
           strftime('%Y-%m-%d %H:%M:%f', ended_at / 1e6, 'unixepoch') AS ended_at, end_cause, end_reason
      FROM everbeat_workers;
CREATE VIEW everbeat_heartbeats_readable AS
    SELECT id, task_id, sender_id, role, strftime('%Y-%m-%d %H:%M:%f', sent_at / 1e6, 'unixepoch') AS sent_at, hostname, pid, fence
      FROM everbeat_heartbeats;
CREATE VIEW everbeat_history_readable AS
    SELECT id, task_id, strftime('%Y-%m-%d %H:%M:%f', at / 1e6, 'unixepoch') AS at, actor, change, old_status, new_status, reason,
           attempt, fence, worker_id
      FROM everbeat_history;
CREATE VIEW everbeat_attempts_readable AS
    SELECT id, task_id, attempt, outcome, will_retry, billed,
           strftime('%Y-%m-%d %H:%M:%f', started_at / 1e6, 'unixepoch') AS started_at,
           strftime('%Y-%m-%d %H:%M:%f', finished_at / 1e6, 'unixepoch') AS finished_at,
           error_code, error_message, worker_id, hostname, pid
      FROM everbeat_attempts;
CREATE VIEW everbeat_events_readable AS
    SELECT id, strftime('%Y-%m-%d %H:%M:%f', at / 1e6, 'unixepoch') AS at, name, task_id, worker_id, facts
      FROM everbeat_events;
CREATE VIEW everbeat_late_outcomes_readable AS
    SELECT id, task_id, fence, attempt, worker_id, strftime('%Y-%m-%d %H:%M:%f', at / 1e6, 'unixepoch') AS at,
           found_status, found_fence, error_code, error_message
      FROM everbeat_late_outcomes;
CREATE VIEW everbeat_recovery_reports_readable AS
    SELECT id, strftime('%Y-%m-%d %H:%M:%f', at / 1e6, 'unixepoch') AS at, actor, report
      FROM everbeat_recovery_reports;
CREATE VIEW everbeat_deliveries_readable AS
    SELECT d.event_id, d.application, e.name, e.task_id, d.worker_id, d.failures, d.failure,
           strftime('%Y-%m-%d %H:%M:%f', d.delivered_at / 1e6, 'unixepoch') AS delivered_at
      FROM everbeat_deliveries d, everbeat_events e WHERE e.id = d.event_id;
CREATE VIEW everbeat_worker_states_readable AS
    SELECT id, worker_id, strftime('%Y-%m-%d %H:%M:%f', snapshot_at / 1e6, 'unixepoch') AS snapshot_at, hostname, pid,
           strftime('%Y-%m-%d %H:%M:%f', worker_started_at / 1e6, 'unixepoch') AS worker_started_at, processes,
           async_slots, queues, tasks_running, tasks_claimed, tasks_completed, tasks_failed, store_errors,
           memory_usage_mb, memory_percent, cpu_percent
      FROM everbeat_worker_states;
CREATE VIEW everbeat_workflows_readable AS
    SELECT id, name, status, on_error, parent_id, nodes, nodes_left, error_node, error_code, error_message, paused_by, stuck,
           strftime('%Y-%m-%d %H:%M:%f', created_at / 1e6, 'unixepoch') AS created_at,
           strftime('%Y-%m-%d %H:%M:%f', started_at / 1e6, 'unixepoch') AS started_at,
           strftime('%Y-%m-%d %H:%M:%f', finished_at / 1e6, 'unixepoch') AS finished_at
      FROM everbeat_workflows;
CREATE VIEW everbeat_workflow_tasks_readable AS
    SELECT n.workflow_id, n.node, n.name, n.kind,
           CASE WHEN n.status = 'ENQUEUED' AND t.status = 'RUNNING' THEN 'RUNNING' ELSE n.status END AS status,
           n.task_id, n.child_id, n.task_name, n.deps, n.needed, n.deps_left, n.deps_ok, n.deps_failed, t.attempt,
           strftime('%Y-%m-%d %H:%M:%f', coalesce(t.started_at, n.started_at) / 1e6, 'unixepoch') AS started_at,
           strftime('%Y-%m-%d %H:%M:%f', n.finished_at / 1e6, 'unixepoch') AS finished_at,
           n.error_code, n.error_message
      FROM everbeat_workflow_tasks n LEFT JOIN everbeat_tasks t ON t.id = n.task_id;
