"""The verbs: the life of a job, in order.

1. `enqueue`  a call becomes a row
2. `wake`     a row becomes a nudge
3. `claim`    free slots take rows
4. `run`      a row becomes a call, a call becomes an outcome
5. `settle`   an outcome becomes a row

Beside the path: `gates` lets in jobs that a limit, an order or a pause keeps out, `listen` keeps the ear open,
`pressure` keeps queues from growing without end, `pulse` says that the worker lives, `report` tells how long runs get
on, `rescue` takes jobs back from the dead, `results` waits for outcomes, `tell` tells those who have subscribed, `tick`
lets schedules fire, `transact` keeps a run and its settlement in one transaction, `upkeep` looks after the tables,
`watch` tells how far jobs are.

The steps do not import each other. They meet as values and as functions that `worker.py` passes in.
"""
