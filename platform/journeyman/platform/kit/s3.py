"""The S3 driver of the object store, through boto3 on worker threads."""

import asyncio
from collections.abc import Callable
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.handlers import add_expect_header

from journeyman.platform.kit.errors import Unavailable
from journeyman.platform.kit.object_store import ObjectNotFound
from journeyman.platform.kit.s3_clock import follow_the_servers_clock
from journeyman.platform.kit.settings import Settings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

P = ParamSpec("P")
R = TypeVar("R")

_ABSENT = {"404", "NoSuchKey", "NotFound"}


_UNASKED = 128 * 1024
"""Bytes that are sent with their request. Of more, a server may refuse a request without reading them, and break the connection."""


def _ask_before_large_uploads(params: dict[str, Any], **kwargs: Any) -> None:
    """Let only a large upload ask first whether it may come, which costs a round trip."""
    body = params.get("body")
    if not isinstance(body, BytesIO) or body.getbuffer().nbytes > _UNASKED:
        add_expect_header(params=params, **kwargs)


class S3ObjectStore:
    """Any S3. Errors of the network or the server become :class:`Unavailable`, which Temporal retries."""

    def __init__(self, client: "S3Client", bucket: str) -> None:
        self._client = client
        self._bucket = bucket

    @classmethod
    def from_settings(cls, settings: Settings) -> "S3ObjectStore":
        client = boto3.client(
            "s3",
            endpoint_url=settings.s3_endpoint_url,
            aws_access_key_id=settings.s3_access_key.get_secret_value() if settings.s3_access_key else None,
            aws_secret_access_key=settings.s3_secret_key.get_secret_value() if settings.s3_secret_key else None,
            region_name=settings.s3_region,
            config=Config(
                connect_timeout=3,
                read_timeout=60,
                retries={"max_attempts": 2, "mode": "standard"},
                max_pool_connections=32,
                s3={"addressing_style": "path"},
                # SeaweedFS and older MinIO do not know the newer trailing checksums.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )
        follow_the_servers_clock(client)
        client.meta.events.unregister("before-call.s3", add_expect_header)
        client.meta.events.register("before-call.s3", _ask_before_large_uploads)
        return cls(client, settings.s3_bucket)

    async def put(self, key: str, data: bytes) -> None:
        await self._call(self._client.put_object, Bucket=self._bucket, Key=key, Body=data)

    async def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        options: dict[str, Any] = {}
        if length == 0:
            return b""
        if start or length is not None:
            options["Range"] = f"bytes={start}-" + ("" if length is None else str(start + length - 1))

        def read() -> bytes:
            return self._client.get_object(Bucket=self._bucket, Key=key, **options)["Body"].read()

        return await self._call(read)

    async def exists(self, key: str) -> bool:
        try:
            await self._call(self._client.head_object, Bucket=self._bucket, Key=key)
        except ObjectNotFound:
            return False
        return True

    async def delete(self, key: str) -> None:
        await self._call(self._client.delete_object, Bucket=self._bucket, Key=key)

    async def list_keys(self, prefix: str) -> list[str]:
        def collect() -> list[str]:
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix)
            return sorted(item.get("Key", "") for page in pages for item in page.get("Contents", []))

        return await self._call(collect)

    async def check(self) -> None:
        await self._call(self._client.head_bucket, Bucket=self._bucket)

    async def ensure_bucket(self) -> None:
        """Create the bucket when it is absent."""
        try:
            await self.check()
        except ObjectNotFound:
            await self._call(self._client.create_bucket, Bucket=self._bucket)

    async def _call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return await asyncio.to_thread(partial(function, *args, **kwargs))
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            if code in _ABSENT:
                raise ObjectNotFound("The object store holds nothing under this key.") from error
            raise Unavailable(f"The object store refused a request ({code}); it is tried again.") from error
        except BotoCoreError as error:
            raise Unavailable("The object store does not answer; the request is tried again.") from error
