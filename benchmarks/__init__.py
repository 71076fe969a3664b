"""Benchmarks: each program prints its question, its method and its answer.

    python -m benchmarks                 all of them
    python -m benchmarks drain enqueue   some

Machines are noisy and differ, so what counts is a ratio: in every round the same work is done by aiopgq and by
raw asyncpg, one after the other, each in a fresh database; the answer is the median of the rounds.

    drain.py     how fast workers empty a line
    enqueue.py   how fast calls become rows
    latency.py   how long from the call to the handler
    idle.py      what a worker costs that has nothing to do, or has done much
    raw.py       the floors: the same statements with no framework around them
    peers/       the same work through other queues, a program of its own: python -m benchmarks.peers
"""
