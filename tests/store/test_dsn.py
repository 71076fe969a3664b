"""Which host of a DSN is asked first."""

import pytest

from aiopgq._store.dsn import Hosts

THREE = "postgresql://me:a%2Cb@one:1,[::1]:2,three/db?target_session_attrs=read-write"


def test_a_host_that_is_silent_is_asked_last():
    hosts = Hosts(THREE)
    assert hosts.dsn == THREE
    seen = []
    for _ in range(3):
        hosts.silent(hosts.dsn)
        seen.append(hosts.dsn)
    assert seen == [
        "postgresql://me:a%2Cb@[::1]:2,three,one:1/db?target_session_attrs=read-write",
        "postgresql://me:a%2Cb@three,one:1,[::1]:2/db?target_session_attrs=read-write",
        THREE,
    ]


def test_many_who_waited_for_the_same_host_turn_to_the_next_one_together():
    hosts = Hosts(THREE)
    for _ in range(4):
        hosts.silent(THREE)
    assert hosts.dsn.startswith("postgresql://me:a%2Cb@[::1]:2,")


@pytest.mark.parametrize("dsn", ["postgresql://", "postgresql://me@one/db", "postgresql:///db?host=/tmp&port=1"])
def test_a_single_host_is_asked_again_and_again(dsn):
    hosts = Hosts(dsn)
    hosts.silent(dsn)
    assert hosts.dsn == dsn
