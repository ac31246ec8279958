"""Taking in workspace archives: received into a file, checked whole, kept as a snapshot."""

import asyncio
import hashlib
import tempfile
from collections.abc import AsyncIterator
from typing import IO, Final

from journeyman.platform.checkpoints.snapshots import SnapshotStore
from starlette.exceptions import HTTPException

from journeyman.platform.checkpoints.repository import note_snapshot
from journeyman.platform.kit.clock import now
from journeyman.platform.kit.database import Database
from journeyman.platform.kit.errors import InvalidInput
from journeyman.platform.kit.ids import new_id
from journeyman.platform.uploads import repository
from journeyman.platform.uploads.models import Upload

AT_ONCE: Final = 2
"""Archives unpacked at the same time in one process: each may need as much memory as an archive may be large."""
_IN_MEMORY: Final = 4 * 1024 * 1024
_MAX_NAME: Final = 200


class UploadService:
    def __init__(self, database: Database, snapshots: SnapshotStore, *, max_bytes: int) -> None:
        self._database = database
        self._snapshots = snapshots
        self._max_bytes = max_bytes
        self._unpacking = asyncio.Semaphore(AT_ONCE)

    async def receive(self, project_id: str, name: str, chunks: AsyncIterator[bytes]) -> Upload:
        """Take in a tar, tar.gz or zip. Nothing of it is kept when any member is refused.

        Raises :class:`InvalidInput` (which member, and why) and HTTP 413.
        """
        with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY) as spool:
            digest = hashlib.sha256()
            size = 0
            async for chunk in chunks:
                size += len(chunk)
                if size > self._max_bytes:
                    raise HTTPException(413, f"The archive is larger than {self._max_bytes} bytes, the most allowed.")
                digest.update(chunk)
                if size > _IN_MEMORY:
                    await asyncio.to_thread(spool.write, chunk)
                else:
                    spool.write(chunk)
            if size == 0:
                raise InvalidInput("The upload is empty. Send a tar, tar.gz or zip archive.", code="empty_upload")
            async with self._unpacking:
                snapshot = await self._snapshots.from_archive(project_id, await asyncio.to_thread(_whole, spool))
        upload = Upload(
            id=new_id("upload"),
            project_id=project_id,
            name=_shown(name),
            size=size,
            digest=digest.hexdigest(),
            snapshot=snapshot.digest,
            files=snapshot.files,
            created_at=now(),
        )
        async with self._database.transaction() as session:
            await note_snapshot(session, project_id, snapshot.digest, snapshot.files, snapshot.bytes)
            await repository.add(session, upload)
        return upload


def _whole(spool: IO[bytes]) -> bytes:
    spool.seek(0)
    return spool.read()


def _shown(name: str) -> str:
    """A file name fit to be stored and shown."""
    text = name.encode("utf-8", "replace").decode()
    return "".join(character if character.isprintable() else "_" for character in text)[:_MAX_NAME] or "archive"
