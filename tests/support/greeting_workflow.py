"""A workflow with one activity, importable by name: the workflow sandbox imports it again."""

from datetime import timedelta

from temporalio import activity, workflow


@activity.defn
async def say(name: str) -> str:
    return f"hello {name}"


@workflow.defn
class Greeting:
    @workflow.run
    async def run(self, name: str) -> str:
        return await workflow.execute_activity(say, name, start_to_close_timeout=timedelta(seconds=10))
