"""A shop that runs for ten seconds on a PostgreSQL of its own: `python -m aiopgq demo`.

Read in this order:

    shop.py        the tasks, as a user would write them
    story.py       what is enqueued, and what happens to it
    gauges.py      one look at the database; everything shown is read here
    facts.py       what happened, in sentences
    screen.py      the output: plain lines; live.py is the table on a terminal
    ground.py      where it runs: the server, the log, the end, also by Ctrl-C
    command.py     the command itself
    playground.py  the same tasks for a worker on a kept database
"""

from aiopgq.cli.demo.command import demo

__all__ = ["demo"]
