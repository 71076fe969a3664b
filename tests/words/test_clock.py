"""Ids: where they come from, and that nobody makes the same twice."""

import multiprocessing
from concurrent.futures import ThreadPoolExecutor

import pytest

from aiopgq._words.clock import uuid7


def test_ids_are_of_version_7_and_sort_by_the_time_they_were_made():
    ids = [uuid7() for _ in range(2000)]

    assert {(one.version, one.variant) for one in ids} == {(7, "specified in RFC 4122")}
    assert [one.int >> 80 for one in ids] == sorted(one.int >> 80 for one in ids)


def test_threads_never_make_the_same_id():
    with ThreadPoolExecutor(8) as threads:
        ids = [one for made in threads.map(lambda _: [uuid7() for _ in range(5000)], range(8)) for one in made]

    assert len(set(ids)) == len(ids)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_does_not_make_the_ids_of_its_parent():
    uuid7()
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    child = context.Process(target=lambda: sending.send([uuid7().int & (1 << 62) - 1 for _ in range(300)]))
    child.start()
    theirs = receiving.recv()
    child.join()
    ours = [uuid7().int & (1 << 62) - 1 for _ in range(300)]

    assert not set(ours) & set(theirs)
