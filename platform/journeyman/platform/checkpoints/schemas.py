"""Checkpoints, files and differences as the API shows them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from journeyman.platform.checkpoints.diff import ChangeKind, FileChange
from journeyman.platform.checkpoints.models import Checkpoint
from journeyman.platform.checkpoints.paths import relative, valid_text
from journeyman.platform.http.pagination import DEFAULT_LIMIT, PageLimit
from journeyman.platform.kit.database import Json
from journeyman.platform.sandboxes.port import TreeEntry

Point = Annotated[str, Field(max_length=80)]
"""A checkpoint's id, or ``initial`` (before any work), ``head`` (with all approved work), ``latest`` (the newest checkpoint)."""


class CheckpointView(BaseModel):
    id: str
    task_id: str
    event_seq: int
    thread_id: str | None
    thread_cursors: Json
    plan_revision: int
    snapshot: str
    head_snapshot: str | None
    """With all approved work in it."""
    epoch: int
    """How often the task had been rewound. Checkpoints of lower epochs are from branches that were left, at least in part."""
    submitted: bool
    """Whether its thread's role handed over with this step."""
    budget: Json
    """Spent up to this point: ``{tokens, cost_usd, steps, wall_s}``."""
    created_at: datetime

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> "CheckpointView":
        return cls(
            id=checkpoint.id,
            task_id=checkpoint.task_id,
            event_seq=checkpoint.event_seq,
            thread_id=checkpoint.thread_id,
            thread_cursors=checkpoint.thread_cursors,
            plan_revision=checkpoint.plan_revision,
            snapshot=checkpoint.snapshot,
            head_snapshot=checkpoint.head_snapshot,
            epoch=checkpoint.epoch,
            submitted=checkpoint.submitted,
            budget=checkpoint.budget,
            created_at=checkpoint.created_at,
        )


class CheckpointPage(BaseModel):
    """Newest first."""

    data: list[CheckpointView]
    next_cursor: str | None


class CheckpointFilter(BaseModel):
    model_config = ConfigDict(extra="forbid")

    cursor: Annotated[str, Field(max_length=500)] | None = None
    limit: PageLimit = DEFAULT_LIMIT


class FileView(BaseModel):
    """A file, directory or symbolic link; ``path`` is relative to the workspace."""

    path: str
    kind: Literal["file", "directory", "symlink"]
    mode: str
    """Permission bits in octal, for example ``0644``."""
    size: int
    sha256: str | None
    target: str | None
    """Of a symbolic link."""

    @classmethod
    def of(cls, entry: TreeEntry) -> "FileView":
        return cls(
            path=relative(entry.path),
            kind=entry.kind,
            mode=f"{entry.mode:04o}",
            size=entry.size,
            sha256=entry.sha256 or None,
            target=valid_text(entry.target) if entry.kind == "symlink" else None,
        )


class FileList(BaseModel):
    """In the order of their paths. ``truncated``: there are more; name a ``path`` to see the rest."""

    snapshot: str
    data: list[FileView]
    truncated: bool


class FilesFilter(BaseModel):
    model_config = ConfigDict(extra="forbid")

    checkpoint: Point = "head"
    path: Annotated[str, Field(max_length=4096)] = ""
    """A directory (all below it) or a file; default: everything."""


class ContentFilter(BaseModel):
    model_config = ConfigDict(extra="forbid")

    path: Annotated[str, Field(min_length=1, max_length=4096)]
    checkpoint: Point = "head"


class DiffFilter(BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    from_: Annotated[Point, Field(alias="from")] = "initial"
    to: Point = "head"


class ChangeView(BaseModel):
    """One changed path."""

    path: str
    kind: ChangeKind
    binary: bool
    patch: str
    """Unified diff; empty for what is not text."""


class DiffView(BaseModel):
    """``patch`` is all changes as one unified diff; ``truncated`` when it is longer than what one answer holds."""

    model_config = ConfigDict(populate_by_name=True)

    from_snapshot: str
    to_snapshot: str
    data: list[ChangeView]
    patch: str
    truncated: bool

    @classmethod
    def of(cls, before: str, after: str, changes: Sequence[FileChange], *, max_patch: int) -> "DiffView":
        """Every change; in their order, the patches that fit into ``max_patch`` characters together."""
        shown: list[ChangeView] = []
        room, truncated = max_patch, False
        for change in changes:
            patch = valid_text(change.patch)
            if len(patch) > room:
                patch, truncated = "", True
            room -= len(patch)
            shown.append(ChangeView(path=relative(change.path), kind=change.kind, patch=patch, binary=change.binary))
        return cls(
            from_snapshot=before,
            to_snapshot=after,
            data=shown,
            patch="".join(change.patch for change in shown),
            truncated=truncated,
        )
