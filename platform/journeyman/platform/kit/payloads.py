"""Where large payloads of Temporal go: the object store. The net below the rule that workflows hold references only.

A payload that is larger than :data:`THRESHOLD` is stored under a key with its workflow and run; the history holds the key
and the digest. Temporal deletes nothing there: whoever expires ``payloads/`` must keep objects longer than the longest
run and its retention together.
"""

import asyncio
import hashlib
import re
from collections.abc import Sequence
from typing import Final

from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    ExternalStorage,
    StorageDriver,
    StorageDriverClaim,
    StorageDriverRetrieveContext,
    StorageDriverStoreContext,
    StorageDriverWorkflowInfo,
)

from journeyman.platform.kit.errors import Unavailable
from journeyman.platform.kit.object_store import ObjectStore

PREFIX: Final = "payloads"

THRESHOLD: Final = 24 * 1024
"""Bytes of one payload that history keeps itself. What passes here by design has a few hundred."""

_UNUSUAL: Final = re.compile(r"[^A-Za-z0-9/._-]")


class ObjectStoreDriver(StorageDriver):
    """Payloads in the object store, each under its workflow, its run and the SHA-256 of its bytes.

    A store that is away raises: a workflow task or an activity that needs the payload is then tried again by Temporal, and
    the workflow waits instead of failing.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def name(self) -> str:
        return "journeyman.objects"

    def type(self) -> str:
        return "journeyman.objects"

    async def store(self, context: StorageDriverStoreContext, payloads: Sequence[Payload]) -> list[StorageDriverClaim]:
        return list(await asyncio.gather(*(self._put(context, payload) for payload in payloads)))

    async def _put(self, context: StorageDriverStoreContext, payload: Payload) -> StorageDriverClaim:
        data = payload.SerializeToString(deterministic=True)
        digest = hashlib.sha256(data).hexdigest()
        key = f"{_folder(context)}/{digest}"
        # The same bytes under the same key: an attempt that is repeated replaces them by themselves.
        await self._store.put(key, data)
        return StorageDriverClaim({"key": key, "sha256": digest})

    async def retrieve(
        self,
        context: StorageDriverRetrieveContext,  # noqa: ARG002  it says nothing: the claim does
        claims: Sequence[StorageDriverClaim],
    ) -> list[Payload]:
        return list(await asyncio.gather(*(self._get(claim) for claim in claims)))

    async def _get(self, claim: StorageDriverClaim) -> Payload:
        key = claim.claim_data["key"]
        data = await self._store.get(key)
        if hashlib.sha256(data).hexdigest() != claim.claim_data["sha256"]:
            raise Unavailable(
                f"What the object store holds under {key} is not what was stored there. The workflow waits until the "
                "object is restored from a backup."
            )
        payload = Payload()
        payload.ParseFromString(data)
        return payload


def payload_storage(store: ObjectStore) -> ExternalStorage:
    """For the data converter of every client and worker: who reads a history must be able to fetch what it refers to."""
    return ExternalStorage(drivers=[ObjectStoreDriver(store)], payload_size_threshold=THRESHOLD)


def _folder(context: StorageDriverStoreContext) -> str:
    target = context.target
    if target is None:
        return f"{PREFIX}/other"
    kind = "workflow" if isinstance(target, StorageDriverWorkflowInfo) else "activity"
    parts = (target.namespace, kind, target.id or "unknown", target.run_id or "first-run")
    return "/".join((PREFIX, *(_UNUSUAL.sub("_", part) for part in parts)))
