"""Peers: the same work through other job queues, in one run with ours, as a table with ratios.

    python -m benchmarks.peers                                   every peer, every work: about half an hour
    python -m benchmarks.peers --quick                           shows that it runs, measures nothing
    python -m benchmarks.peers --only pgqueuer,arq --work drain,latency

It needs a network the first time: each peer gets a virtual environment of its own under `.cache/peers`, made from the
pinned file in `requirements`. A peer that cannot be installed, or whose server is not here (arq wants `redis-server`
on the PATH), is left out, and the table says why. The tests run the harness with ours alone.

Every peer is one small file: a subclass of `protocol.Peer`, run in its environment as a program that takes commands
and gives answers as JSON lines. Ours is one of them, and so is the floor, so that all are treated alike:

    ours.py            aiopgq with its defaults: the archive is on
    floor.py           raw asyncpg with our tables and statements: a floor, not a queue to use
    pgqueuer.py        asyncpg; autovacuum as its `pgq autovac` sets it; concurrency is its batch size
    procrastinate.py   psycopg in C; LISTEN/NOTIFY on; finished jobs are kept
    chancy.py          psycopg in C; AsyncExecutor, eager polling, poll every second
    oban.py            psycopg in C; its open-source part with its default intervals; needs Python 3.12
    arq.py             Redis with a synced append-only file; polls every 10 ms, keeps no result; no bulk call

What is fair: the same server with durable commits, a fresh database for each run, the same job (a no-op with one small
int), uvloop everywhere, the driver's fastest build, ten connections for fifty callers where a peer has a pool. A peer's
concurrency is the best of 10, 100, 500 and 1,000, found beforehand (for two processes, the better of the two best of
one); ours and the floor's is always 500 there. The order turns from round to round, figures are the medians of the
rounds, and a run counts only if every job was run and the database says that none is left and all are done. What
differs: peers run on the Python that runs the benchmark unless they need a newer one, and the floor's jobs carry three
small arguments. On a busy machine take more `--rounds`, and fewer peers.
"""
