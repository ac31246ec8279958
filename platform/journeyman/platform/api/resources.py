"""What the process has: built once in the lifespan, handed to endpoints by dependencies."""

from dataclasses import dataclass
from typing import Literal

from temporalio.client import Client

from journeyman.platform.budgets.warnings import BudgetWarnings
from journeyman.platform.checkpoints.snapshots import SnapshotStore
from journeyman.platform.events.stream import EventFeed
from journeyman.platform.inference.ledger import LedgerService
from journeyman.platform.inference.replay.catalog import ReplayCatalog
from journeyman.platform.kit.database import Database
from journeyman.platform.kit.notifications import Notifications
from journeyman.platform.kit.object_store import ObjectStore
from journeyman.platform.kit.settings import Settings
from journeyman.platform.memory.service import MemoryService
from journeyman.platform.outbox.dispatcher import OutboxDispatcher
from journeyman.platform.uploads.service import UploadService


@dataclass(frozen=True, slots=True)
class Resources:
    settings: Settings
    database: Database
    object_store: ObjectStore
    snapshots: SnapshotStore
    temporal: Client
    feed: EventFeed
    dispatcher: OutboxDispatcher
    notifications: Notifications
    ledger: LedgerService
    uploads: UploadService
    memory: MemoryService
    budget_warnings: BudgetWarnings
    """Whether limits can be kept, by the models there are."""
    catalog: ReplayCatalog
    """Which instructions the replay engine has a script for."""

    @property
    def engine(self) -> Literal["replay", "model"]:
        """What answers for the agents: a model, or the replay engine with its scripts."""
        return "replay" if self.settings.uses_replay_engine else "model"
