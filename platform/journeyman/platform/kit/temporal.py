"""Temporal: the client, and the one place where queues, workflow names and ids are spelt."""

from datetime import timedelta
from enum import StrEnum
from typing import Final

from temporalio.client import Client, Plugin
from temporalio.contrib.pydantic import pydantic_data_converter

from journeyman.platform.kit.settings import Settings

TASK_WORKFLOW: Final = "TaskWorkflow"
SUBTASK_WORKFLOW: Final = "SubtaskWorkflow"

SIGNAL_CANCEL: Final = "cancel"


class Queue(StrEnum):
    """Task queues, one a worker role, so that a flood of one kind of work cannot starve another."""

    ORCHESTRATION = "orchestration"
    MODELS = "models"
    SANDBOXES = "sandboxes"
    DELIVERIES = "deliveries"


def task_workflow_id(task_id: str) -> str:
    return task_id


def subtask_workflow_id(task_id: str, subtask_id: str, plan_revision: int) -> str:
    return f"{task_id}/subtask/{plan_revision}/{subtask_id}"


RPC_TIMEOUT: Final = timedelta(seconds=5)


async def connect(settings: Settings, *, lazy: bool = False, plugins: list[Plugin] | None = None) -> Client:
    """A client; a lazy one connects at its first call, so that the API starts while Temporal is down."""
    return await Client.connect(
        settings.temporal_address,
        namespace=settings.temporal_namespace,
        data_converter=pydantic_data_converter,
        lazy=lazy,
        plugins=plugins or [],
    )
