"""Dependencies of endpoints: the store of workspace snapshots."""

from typing import Annotated

from fastapi import Depends

from journeyman.platform.checkpoints.snapshots import SnapshotStore
from journeyman.platform.http.dependencies import resource

SnapshotsDep = Annotated[SnapshotStore, Depends(resource(SnapshotStore))]
