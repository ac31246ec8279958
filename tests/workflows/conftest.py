"""client    a Temporal client in a namespace of its own: versions are of a namespace, and no other worker polls there"""

import asyncio
import uuid

import pytest
from google.protobuf.duration_pb2 import Duration
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError

from journeyman.platform.kit.settings import Settings
from journeyman.platform.kit.temporal import connect


@pytest.fixture
async def client(temporal_address: str) -> Client:
    settings = Settings(temporal_address=temporal_address, temporal_namespace=f"tests-{uuid.uuid4().hex[:8]}")
    client = await connect(settings)
    retention = Duration(seconds=86_400)
    await client.workflow_service.register_namespace(
        RegisterNamespaceRequest(namespace=client.namespace, workflow_execution_retention_period=retention)
    )
    async with asyncio.timeout(60):
        while True:
            try:
                await client.count_workflows("WorkflowType = 'TaskWorkflow'")
            except RPCError:
                await asyncio.sleep(0.1)
            else:
                return client
