"""The outbox: events written with the data they are about, and relays that publish them.

`aiopgq.outbox.nats`, `.rabbitmq`, `.redis`, `.kafka`, `.webhook` and `.tasks` hold the publishers, each with the extra
it needs.
"""

from aiopgq._words.outbox_event import Event, EventInfo, Lag
from aiopgq.outbox.face import Outbox, WithOutbox
from aiopgq.outbox.publisher import Message, Outcomes, Publisher, cloud_events, plain, topic
from aiopgq.outbox.relay import Relay

__all__ = [
    "Event",
    "EventInfo",
    "Lag",
    "Message",
    "Outbox",
    "Outcomes",
    "Publisher",
    "Relay",
    "WithOutbox",
    "cloud_events",
    "plain",
    "topic",
]
