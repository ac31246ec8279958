"""Taking in workspace archives: received into a file, checked whole, kept as a snapshot."""

import asyncio
import errno
import hashlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO, Final

from starlette.exceptions import HTTPException

from journeyman.platform.checkpoints.repository import note_snapshot
from journeyman.platform.checkpoints.snapshots import SnapshotStore
from journeyman.platform.kit.clock import now
from journeyman.platform.kit.database import Database
from journeyman.platform.kit.errors import InvalidInput, Unavailable
from journeyman.platform.kit.ids import new_id
from journeyman.platform.uploads import repository
from journeyman.platform.uploads.models import Upload

AT_ONCE: Final = 2
"""Archives unpacked at the same time in one process; the others wait in their files."""
_BUFFER: Final = 1024 * 1024
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
        with tempfile.NamedTemporaryFile(prefix="journeyman-upload-") as file:
            digest, size = await self._spool(file, chunks)
            if size == 0:
                raise InvalidInput("The upload is empty. Send a tar, tar.gz or zip archive.", code="empty_upload")
            async with self._unpacking:
                snapshot = await self._snapshots.from_archive(project_id, Path(file.name))
        upload = Upload(
            id=new_id("upload"),
            project_id=project_id,
            name=_shown(name),
            size=size,
            digest=digest,
            snapshot=snapshot.digest,
            files=snapshot.files,
            created_at=now(),
        )
        async with self._database.transaction() as session:
            await note_snapshot(session, project_id, snapshot.digest, snapshot.files, snapshot.bytes)
            await repository.add(session, upload)
        return upload

    async def _spool(self, file: IO[bytes], chunks: AsyncIterator[bytes]) -> tuple[str, int]:
        """Write the archive to the file; returns its SHA-256 and size."""
        digest = hashlib.sha256()
        size = 0
        buffer = bytearray()

        def flush() -> None:
            digest.update(buffer)
            file.write(buffer)
            file.flush()

        try:
            async for chunk in chunks:
                size += len(chunk)
                if size > self._max_bytes:
                    raise HTTPException(413, f"The archive is larger than {self._max_bytes} bytes, the most allowed.")
                buffer += chunk
                if len(buffer) >= _BUFFER:
                    await asyncio.to_thread(flush)
                    buffer.clear()
            await asyncio.to_thread(flush)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise Unavailable("The server has no room left for the upload; ask its operator to make some.") from error
        return digest.hexdigest(), size


def _shown(name: str) -> str:
    """A file name fit to be stored and shown."""
    text = name.encode("utf-8", "replace").decode()
    return "".join(character if character.isprintable() else "_" for character in text)[:_MAX_NAME] or "archive"
