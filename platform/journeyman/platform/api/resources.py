"""What the process has: built once in the lifespan, handed to endpoints by dependencies."""

from dataclasses import dataclass

from temporalio.client import Client

from journeyman.platform.checkpoints.snapshots import SnapshotStore
from journeyman.platform.events.stream import EventFeed
from journeyman.platform.inference.ledger import LedgerService
from journeyman.platform.inference.replay import ReplayCatalog
from journeyman.platform.kit.database import Database
from journeyman.platform.kit.object_store import ObjectStore
from journeyman.platform.kit.settings import Settings
from journeyman.platform.outbox.dispatcher import OutboxDispatcher


@dataclass(frozen=True, slots=True)
class Resources:
    settings: Settings
    database: Database
    object_store: ObjectStore
    snapshots: SnapshotStore
    temporal: Client
    feed: EventFeed
    dispatcher: OutboxDispatcher
    ledger: LedgerService
    catalog: ReplayCatalog
    """Which instructions the replay engine has a script for."""
