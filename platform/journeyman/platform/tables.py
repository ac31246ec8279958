"""Imports every table, so that the metadata is complete for migrations and tests."""

from journeyman.platform.approvals import models as approvals
from journeyman.platform.artifacts import models as artifacts
from journeyman.platform.board import models as board
from journeyman.platform.branching import models as branching
from journeyman.platform.checkpoints import models as checkpoints
from journeyman.platform.events import models as events
from journeyman.platform.idempotency import models as idempotency
from journeyman.platform.kit.database import Base
from journeyman.platform.leases import models as leases
from journeyman.platform.ledger import models as ledger
from journeyman.platform.ledger import wall_time
from journeyman.platform.memory import models as memory
from journeyman.platform.outbox import models as outbox
from journeyman.platform.plans import models as plans
from journeyman.platform.steering import models as steering
from journeyman.platform.tasks import models as tasks
from journeyman.platform.tenancy import models as tenancy
from journeyman.platform.threads import models as threads
from journeyman.platform.uploads import models as uploads

metadata = Base.metadata

__all__ = [
    "approvals",
    "artifacts",
    "board",
    "branching",
    "checkpoints",
    "events",
    "idempotency",
    "leases",
    "ledger",
    "memory",
    "metadata",
    "outbox",
    "plans",
    "steering",
    "tasks",
    "tenancy",
    "threads",
    "uploads",
    "wall_time",
]
