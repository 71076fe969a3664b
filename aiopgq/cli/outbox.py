"""`outbox`: how far relays are, list, retry and skip events, prune, and run a relay."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Final, Literal, TypeVar
from urllib.parse import urlsplit
from uuid import UUID

import anyio
import click

from aiopgq.app import App
from aiopgq.cli.choose import limit, yes
from aiopgq.cli.logs import LEVELS, configure
from aiopgq.cli.reach import Reach, reaching
from aiopgq.cli.shape import Group, as_json, duration
from aiopgq.cli.tell import age, block, note, number, table, tell, tell_json
from aiopgq.outbox import Outbox, Publisher, Relay, cloud_events, plain

__all__ = ["outbox"]

_Result = TypeVar("_Result")

# By the scheme of a URL: the module, its publisher, and the extra it needs.
_BROKERS: Final = {
    "nats": ("nats", "NatsPublisher", "nats"),
    "tls": ("nats", "NatsPublisher", "nats"),
    "amqp": ("rabbitmq", "RabbitPublisher", "rabbitmq"),
    "amqps": ("rabbitmq", "RabbitPublisher", "rabbitmq"),
    "redis": ("redis", "RedisPublisher", "redis"),
    "rediss": ("redis", "RedisPublisher", "redis"),
    "kafka": ("kafka", "KafkaPublisher", "kafka"),
    "http": ("webhook", "WebhookPublisher", "webhook"),
    "https": ("webhook", "WebhookPublisher", "webhook"),
}
_STATUSES: Final = ("unpublished", "waiting", "retry", "blocked", "set aside", "published", "skipped")


@click.group(cls=Group)
def outbox() -> None:
    """Look at the outbox, mend it, publish it."""


@outbox.command("status", epilog="Example:\n  python -m aiopgq outbox status --json")
@as_json
@reaching
def status(reach: Reach, *, as_json: bool) -> None:
    """Say how far relays are behind."""
    lag = _with(reach, lambda outbox: outbox.lag())
    facts: dict[str, Any] = lag._asdict()
    if as_json:
        tell_json(facts)
        return
    oldest = facts.pop("oldest_seconds")
    block({**facts, "oldest": None if oldest is None else f"{oldest:.1f} s"})
    if lag.unpublished and not lag.relays:
        note("No relay runs: python -m aiopgq outbox relay --publisher nats://…")


@outbox.command("list", epilog='Example:\n  python -m aiopgq outbox list --status "set aside"')
@click.option("--status", type=click.Choice(_STATUSES), default="unpublished", help="Only this status.")
@click.option("--aggregate-type", metavar="NAME", help="Only aggregates of this kind.")
@click.option("--aggregate-id", metavar="ID", help="Only this aggregate.")
@limit
@as_json
@reaching
def list_(
    reach: Reach,
    *,
    status: str,
    aggregate_type: str | None,
    aggregate_id: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """List events, oldest first."""
    found = _with(
        reach,
        lambda outbox: outbox.events(
            status=status, aggregate_type=aggregate_type, aggregate_id=aggregate_id, limit=limit
        ),
    )
    if as_json:
        tell_json(list(found))
        return
    table(
        ("EVENT", "STATUS", "TYPE", "AGGREGATE", "AGE", "ATTEMPTS", "LAST ERROR"),
        [
            (
                one.event_id,
                one.status,
                one.event_type,
                f"{one.aggregate_type} {one.aggregate_id}",
                age(one.created_at),
                one.attempts,
                one.last_error,
            )
            for one in found
        ],
    )
    if not found:
        note("No event fits.")
    elif len(found) == limit:
        note(f"These are the oldest {limit:,}; there may be more, see --limit.")


@outbox.command("retry", epilog="Example:\n  python -m aiopgq outbox retry --all")
@click.argument("event_ids", nargs=-1, type=click.UUID, metavar="[ID]...")
@click.option("--all", "everything", is_flag=True, allow_from_autoenv=False, help="All that failed or were set aside.")
@reaching
def retry(reach: Reach, *, event_ids: Sequence[UUID], everything: bool) -> None:
    """Try events again at once that failed, and those that were set aside.

    What was set aside has been overtaken: it is published late, not in the order of its aggregate.
    """
    if bool(event_ids) == everything:
        raise click.UsageError("say which: event ids, or --all")
    done = _with(reach, lambda outbox: outbox.retry(None if everything else event_ids))
    tell(f"{number(len(done), 'event')} will be tried again.")
    _missing(event_ids, done, "did not fail, or is published")


@outbox.command("skip", epilog="Example:\n  python -m aiopgq outbox skip 01985c7e-7a5e-7000-8000-3f2b6c1d9e10 --yes")
@click.argument("event_ids", nargs=-1, required=True, type=click.UUID, metavar="ID...")
@yes
@reaching
def skip(reach: Reach, *, event_ids: Sequence[UUID], yes: bool) -> None:
    """Give events up; what is blocked behind them goes on."""
    if not yes:
        tell(f"{number(len(event_ids), 'event')} would never be published.")
        note("Nothing was changed; add --yes to do it.")
        return
    done = _with(reach, lambda outbox: outbox.skip(event_ids))
    tell(f"{number(len(done), 'event')} given up.")
    _missing(event_ids, done, "is published, or not there")


@outbox.command("prune", epilog="Example:\n  python -m aiopgq outbox prune --older-than 1d --unpublished --yes")
@click.option("--older-than", type=duration, default=7 * 86_400.0, help="How long events are kept.")
@click.option("--unpublished", is_flag=True, help="Delete what no relay published: where Debezium reads the table.")
@yes
@reaching
def prune(reach: Reach, *, older_than: float, unpublished: bool, yes: bool) -> None:
    """Delete published events; relays do it by themselves."""
    if unpublished and not yes:
        raise click.UsageError("--unpublished deletes events that no relay has published; add --yes to do it")
    tell(f"{number(_with(reach, lambda outbox: outbox.prune(older_than, unpublished=unpublished)), 'event')} deleted.")


@outbox.command(
    "relay",
    epilog="""\
Examples:
  python -m aiopgq outbox relay -A myapp.queue --publisher nats://localhost:4222
  python -m aiopgq outbox relay -A myapp.queue --publisher myapp.events:publisher

Publishers: nats://, amqp:// (exchange outbox), redis://, kafka://host:port, http:// and https:// (with --secret),
or MODULE:ATTR, a publisher or a function that makes one. SIGINT and SIGTERM stop it.
""",
)
@click.option("--publisher", required=True, metavar="URL", help="Where events go.")
@click.option("--secret", metavar="TEXT", help="What webhooks are signed with; better AIOPGQ_OUTBOX_RELAY_SECRET.")
@click.option("--cloud-events", metavar="SOURCE", help="Send CloudEvents that come from this source.")
@click.option("--on-poison", type=click.Choice(("block", "set_aside")), default="block", help="What becomes of poison.")
@click.option("--max-attempts", type=click.IntRange(1), default=10, help="Failures until an event is set aside.")
@click.option("--lease", type=duration, default=15.0, help="How long a silent relay keeps its aggregates.")
@click.option("--retention", type=duration, default=7 * 86_400.0, help="How long published events are kept.")
@click.option("--burst", is_flag=True, help="End when nothing is left to publish.")
@click.option("--name", metavar="NAME", help="The relay's name; default: that of the host.")
@click.option("--log-level", type=click.Choice(LEVELS, case_sensitive=False), help="Default: info.")
@click.option("--log-format", type=click.Choice(("text", "json")), help="Default: text.")
@reaching
def relay(
    reach: Reach,
    *,
    publisher: str,
    secret: str | None,
    cloud_events: str | None,
    on_poison: Literal["block", "set_aside"],
    max_attempts: int,
    lease: float,
    retention: float,
    burst: bool,
    name: str | None,
    log_level: str | None,
    log_format: str | None,
) -> None:
    """Publish events until stopped; start as many as you like, they share the work."""
    configure(log_level, log_format)
    app = reach.app(tasks=True)
    made = app.outbox.relay(
        _publisher(publisher, secret, cloud_events),
        name=name,
        burst=burst,
        on_poison=on_poison,
        max_attempts=max_attempts,
        lease=lease,
        retention=retention,
    )
    anyio.run(_run, made)


async def _run(relay: Relay) -> None:
    loop = asyncio.get_running_loop()
    for one in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(one, relay.stop)
    await relay.run()


def _publisher(url: str, secret: str | None, source: str | None) -> Publisher:
    """Make the publisher that a URL names.

    Raises:
        UsageError: There is none such.
    """
    if "://" not in url:
        return _own(url)
    scheme = urlsplit(url).scheme
    if scheme not in _BROKERS:
        raise click.UsageError(f"there is no publisher for {scheme}://; known are {', '.join(sorted(_BROKERS))}")
    module, kind, extra = _BROKERS[scheme]
    try:
        make = getattr(import_module(f"aiopgq.outbox.{module}"), kind)
    except ImportError as error:
        raise click.UsageError(f"{scheme}:// needs {error.name}; pip install 'aiopgq[{extra}]'") from None
    more: dict[str, Any] = {"envelope": cloud_events(source) if source else plain}
    if module == "webhook":
        if not secret:
            raise click.UsageError("a webhook needs --secret, or AIOPGQ_OUTBOX_RELAY_SECRET")
        more["secret"] = secret
    made: Publisher = make(url.removeprefix("kafka://"), **more)

    return made


def _own(target: str) -> Publisher:
    """Load the user's own publisher.

    Raises:
        UsageError: It is not there.
    """
    module, _, name = target.partition(":")
    try:
        found: Any = getattr(import_module(module), name or "publisher")
    except (ImportError, AttributeError) as error:
        raise click.UsageError(f"--publisher {target}: {error}") from None
    if not hasattr(found, "publish") and callable(found):
        found = found()
    if not hasattr(found, "publish"):
        raise click.UsageError(f"--publisher {target}: {type(found).__name__} has no method publish")
    made: Publisher = found

    return made


def _with(reach: Reach, work: Callable[[Outbox], Awaitable[_Result]]) -> _Result:
    return anyio.run(partial(_opened, reach.app(), work))


async def _opened(app: App[Any], work: Callable[[Outbox], Awaitable[_Result]]) -> _Result:
    async with app:
        return await work(app.outbox)


def _missing(asked: Sequence[UUID], done: Sequence[UUID], what: str) -> None:
    missing = [one for one in asked if one not in set(done)]
    for one in missing:
        note(f"Event {one} {what}.")
    if missing:
        click.get_current_context().exit(1)
