"""Object storage: the port. Blobs are addressed by the SHA-256 of their content; other keys are the caller's.

Drivers: :class:`journeyman.platform.kit.s3.S3ObjectStore`.
"""

import hashlib
from typing import Protocol

from journeyman.platform.kit.errors import NotFound


class ObjectNotFound(NotFound):
    code = "object_not_found"


class ObjectStore(Protocol):
    """Keys are relative paths of ASCII letters, digits and ``/._-``; values are bytes of any length up to 5 GiB."""

    async def put(self, key: str, data: bytes) -> None:
        """Store the bytes; durable when this returns. Putting a key again replaces it."""
        ...

    async def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """The bytes, or the given range of them. Raises :class:`ObjectNotFound`."""
        ...

    async def exists(self, key: str) -> bool: ...

    async def delete(self, key: str) -> None:
        """Remove the key; not an error when it is absent."""
        ...

    async def list_keys(self, prefix: str) -> list[str]:
        """All keys that begin with the prefix, sorted."""
        ...

    async def check(self) -> None:
        """Raise :class:`journeyman.platform.kit.errors.Unavailable` unless the store answers."""
        ...


def digest_of(data: bytes) -> str:
    """Hex SHA-256."""
    return hashlib.sha256(data).hexdigest()


def blob_key(project_id: str, digest: str) -> str:
    """Where a project's blob lives. Projects never share blobs, so a digest tells nothing across them."""
    return f"{project_id}/blobs/{digest[:2]}/{digest}"


async def put_blob(store: ObjectStore, project_id: str, data: bytes) -> str:
    """Store bytes under their digest unless they are there already, and return the digest."""
    digest = digest_of(data)
    key = blob_key(project_id, digest)
    if not await store.exists(key):
        await store.put(key, data)
    return digest
