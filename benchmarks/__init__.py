"""Benchmarks: each program prints its question, its method and its answer.

    python -m benchmarks                 all of them
    python -m benchmarks drain enqueue   some
    python -m benchmarks flat:held-xmin  a part of one

Machines are noisy and differ, so what counts is a ratio: in every round the same work is done by aiopgq and by
raw asyncpg, or in a fresh database and in an aged one, one after the other; the answer is the median of the rounds.

    drain.py     how fast workers empty a line
    enqueue.py   how fast calls become rows
    latency.py   how long from the call to the handler
    idle.py      what a worker costs that has nothing to do, or has done much
    wake.py      what a notification costs a fleet that sleeps, and those who enqueue
    writes.py    what a job writes
    flat.py      whether a claim stays as fast, whatever has happened to the tables
    soak.py      whether all stays small for a long time; 20 minutes, so only when it is named
    raw.py       the floors: the same statements with no framework around them
    peers/       the same work through other queues, a program of its own: python -m benchmarks.peers
"""
