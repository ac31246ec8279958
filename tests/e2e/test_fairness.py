"""Every piece of a task's work stands in line for its project, so that none with thousands of tasks holds up the others.

Activities inherit the key of their workflow when Temporal puts them in line; ``benchmarks/flood.py`` measures what comes of it.
"""

from temporalio.client import Client

from journeyman.apps.embedded.stack import EmbeddedStack
from journeyman.platform.kit.names import subtask_workflow_id
from support.platform import Platform
from support.scripts import shell, simple


async def test_the_workflows_of_a_task_carry_its_project(platform: Platform, full_stack: EmbeddedStack) -> None:
    task_id = await platform.submit(simple(shell("true")))
    project = (await platform.task(task_id))["project_id"]
    client = await Client.connect(full_stack.settings.temporal_address)
    task = await client.get_workflow_handle(task_id).describe()
    assert task.raw_description.workflow_execution_info.priority.fairness_key == project
    await platform.wait_until_event(task_id, "subtask.started")
    subtask = (await client.get_workflow_handle(subtask_workflow_id(task_id, "s1", 1)).describe()).raw_description
    assert subtask.workflow_execution_info.priority.fairness_key == project
