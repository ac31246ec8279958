"""Temporal: the client."""

from typing import Final

from temporalio.client import Client, GrpcCompression, Plugin
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import CompositePayloadConverter, DataConverter

from journeyman.platform.kit.object_store import ObjectStore
from journeyman.platform.kit.payloads import payload_storage
from journeyman.platform.kit.settings import Settings

_CONVERTERS: Final = tuple(PydanticPayloadConverter().converters.values())


class PayloadConverter(CompositePayloadConverter):
    """The SDK's own for Pydantic. The SDK makes one for each payload: what is learnt of a type is kept for all of them."""

    def __init__(self) -> None:
        super().__init__(*_CONVERTERS)


async def connect(
    settings: Settings, store: ObjectStore | None = None, *, lazy: bool = False, plugins: list[Plugin] | None = None
) -> Client:
    """A client; a lazy one connects at its first call, so that the API starts while Temporal is down.

    ``store`` holds payloads that are too large for a history. Without one the client reads no such payload and writes
    none: enough for commands about workflows, not for those that start, signal or carry them out.
    """
    return await Client.connect(
        settings.temporal_address,
        namespace=settings.temporal_namespace,
        data_converter=data_converter(store),
        lazy=lazy,
        # Payloads are references of a few hundred bytes: compressing them costs more time than it saves.
        grpc_compression=GrpcCompression.NONE,
        plugins=plugins or [],
    )


def data_converter(store: ObjectStore | None) -> DataConverter:
    """How every process of the platform writes and reads payloads."""
    return DataConverter(
        payload_converter_class=PayloadConverter, external_storage=payload_storage(store) if store else None
    )
