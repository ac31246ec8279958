"""Temporal: the client."""

from temporalio.client import Client, GrpcCompression, Plugin
from temporalio.contrib.pydantic import pydantic_data_converter

from journeyman.platform.kit.settings import Settings


async def connect(settings: Settings, *, lazy: bool = False, plugins: list[Plugin] | None = None) -> Client:
    """A client; a lazy one connects at its first call, so that the API starts while Temporal is down."""
    return await Client.connect(
        settings.temporal_address,
        namespace=settings.temporal_namespace,
        data_converter=pydantic_data_converter,
        lazy=lazy,
        # Payloads are references of a few hundred bytes: compressing them costs more time than it saves.
        grpc_compression=GrpcCompression.NONE,
        plugins=plugins or [],
    )
