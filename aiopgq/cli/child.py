"""A worker process of `run`: `python -m aiopgq.cli.child TARGET ORDERS REPORTS`, started by `parent.py` only.

It reports errors of ours to its parent, in place of printing them. If it dies here, its parent starts another.
"""

import gc
import logging
import sys
import traceback
from collections.abc import Iterator
from functools import partial
from typing import Final

import anyio

from aiopgq._store.connection import ConnectSettings
from aiopgq.cli.logs import configure
from aiopgq.cli.orders import DONE, DRAINED, Orders, Whereabouts
from aiopgq.cli.plain import one_line
from aiopgq.cli.target import load
from aiopgq.equipment import Parentage
from aiopgq.errors import AiopgqError
from aiopgq.worker import Worker

__all__ = ["main", "settle_down"]

_FAILED: Final = 1
_YOUNG: Final = 25_000


def main(target: str, orders: Orders) -> int:
    """Work until told to stop; return the exit code."""
    try:
        brief = orders.brief()
        app = load(target, tasks=True)
        configure(brief.log_level, brief.log_format)
        app.override(dsn=brief.dsn, schema=brief.schema)
        settle_down()
        worker = app.worker(
            brief.queues or None,
            concurrency=brief.concurrency,
            name=brief.name,
            burst=brief.burst,
            poll_interval=brief.poll_interval,
            shutdown_grace=brief.shutdown_grace,
            job_log=brief.job_log,
            parent=Parentage(brief.parent, brief.predecessors, partial(_announce, orders)),
        )
        anyio.run(_work, worker, orders, backend_options={"use_uvloop": brief.uvloop})
    except BaseException as error:  # noqa: BLE001  # whatever ends a worker process, its parent is told
        return _report(error, orders)
    orders.report(DRAINED if worker.drained else DONE)

    return 0


def settle_down() -> None:
    """Spare the collector what was imported; it stays for good.

    Hundreds of jobs at once hold some thousands of objects, which die without the collector: by default it would look
    at them several times a second, for a tenth of a worker's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, 20, 100)


async def _work(worker: Worker, orders: Orders) -> None:
    failure: BaseException | None = None
    orders.follow(worker.stop)
    try:
        await worker.run()
    except BaseException as error:  # noqa: BLE001  # raised again below
        failure = error
    orders.expect_end()
    if worker.left_behind:
        # Handlers and threads that ignore their end would keep the process, or be destroyed with noise.
        code = _FAILED if failure is None else _report(failure, orders)
        if worker.drained:
            orders.report(DRAINED)
        logging.shutdown()
        sys.stdout.flush()
        orders.end(code)
    if failure is not None:
        raise failure


def _announce(orders: Orders, connect: ConnectSettings, keep: bool) -> None:
    orders.announce(Whereabouts(connect.dsn, connect.schema, keep))


def _report(error: BaseException, orders: Orders) -> int:
    leaves = list(_leaves(error))
    ours = leaves[0]
    if not all(isinstance(leaf, AiopgqError) for leaf in leaves) or not isinstance(ours, AiopgqError):
        traceback.print_exception(error)
        orders.report(one_line(f"{type(error).__name__}: {error}"))
        return _FAILED
    told = getattr(ours, "traceback", "")
    orders.report(f"{told}Error: {one_line(ours)}")

    return ours.exit_code


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


if __name__ == "__main__":
    orders = Orders(int(sys.argv[2]), int(sys.argv[3]))
    code = main(sys.argv[1], orders)
    # Threads of the user's modules may still keep the process.
    orders.expect_end()
    sys.exit(code)
