"""The workflow code replays what tasks recorded before, and is not changed without notice."""

import ast
import json

import pytest
from temporalio.client import WorkflowHistory

from journeyman.workflows import fingerprint
from support.histories import CODE, FOLDER, OF_THE_MACHINE, changes, code, replayer, stored
from support.record_histories import SCENARIOS

HISTORIES = dict(stored())

WHAT_TO_DO = """
The workflow code has changed since the golden histories were recorded, in: {changed}

Tasks that run now have histories of the older code. What to do:

1. Run this file's replay tests. If they pass, histories of the older code can be replayed by the new one, as far as these
   show; look all the same whether a command was added, removed or put in another order. An inserted sleep or an
   activity with the same name can replay without an error and still behave differently.
2. If they fail, that is no harm by itself: the new code is a new version, and tasks are pinned to theirs or moved by
   beginning their run anew (docs/decisions/0011-versions-of-workflow-code.md).
3. Record again: make histories. It plays the scenarios of tests/support/record_histories.py on the real stack, and notes the
   new fingerprint. Commit what it wrote together with the change. For a small change after which the replay tests pass,
   make histories ARGS=--accept notes the fingerprint alone.
"""


def test_there_are_histories_of_every_scenario() -> None:
    scenarios = {name.split("/")[0] for name in HISTORIES}
    assert scenarios == {*SCENARIOS}
    runs = [name for name in HISTORIES if name.startswith("many-runs/") and "SubtaskWorkflow" in name]
    assert len(runs) >= 3


@pytest.mark.parametrize("name", HISTORIES)
async def test_recorded_histories_replay(name: str) -> None:
    await replayer().replay_workflow(HISTORIES[name])


@pytest.mark.parametrize("name", HISTORIES)
def test_recorded_histories_tell_nothing_of_the_machine(name: str) -> None:
    assert not [field for field in OF_THE_MACHINE if f'"{field}":' in (FOLDER / f"{name}.json").read_text()]


async def test_a_history_that_does_not_fit_is_noticed() -> None:
    """Without this, a replayer that replays nothing would pass for one that replays everything."""
    name, history = next((name, history) for name, history in HISTORIES.items() if "SubtaskWorkflow" in name)
    events = json.loads(history.to_json())
    scheduled = next(
        event["activityTaskScheduledEventAttributes"]
        for event in events["events"]
        if "activityTaskScheduledEventAttributes" in event
    )
    scheduled["activityType"]["name"] = "another_activity"
    with pytest.raises(Exception, match=r"TMPRL1100|[Nn]ondeterminis"):
        await replayer().replay_workflow(WorkflowHistory.from_json(name, events))


def test_the_workflow_code_is_that_of_the_histories() -> None:
    recorded, current = json.loads(CODE.read_text()), code()
    if recorded != current:
        pytest.fail(WHAT_TO_DO.format(changed=", ".join(changes(recorded["definitions"], current["definitions"]))))


def test_histories_hold_nothing_of_the_machine_that_recorded_them() -> None:
    for file in FOLDER.rglob("*.json"):
        assert '"identity"' not in file.read_text()


FUNCTION = '''
def plan(graph):
    """What it does."""
    # why
    return [node for node in graph if node]
'''


@pytest.mark.parametrize(
    ("change", "counts"),
    [
        (("What it does.", "What it really does."), False),
        (("# why", "# because"), False),
        (("    return [", "    return [\n        "), False),
        (("if node", "if not node"), True),
        (("return", "graph.sort()\n    return"), True),
    ],
)
def test_what_the_fingerprint_notices(change: tuple[str, str], counts: bool) -> None:
    before, after = (fingerprint._dumped(ast.parse(text)) for text in (FUNCTION, FUNCTION.replace(*change)))
    assert (before != after) is counts


def test_the_fingerprint_covers_what_workflow_code_reaches() -> None:
    places = set(code()["definitions"])
    assert {
        "journeyman.workflows.task_workflow:TaskWorkflow",
        "journeyman.workflows.thread_run:run_thread",
        "journeyman.workflows.timing:RETRY",
        "journeyman.workflows.types:PlanNode",
        "journeyman.workflows.continuation:is_due",
        "journeyman.agents.plans:ready_subtasks",
        "journeyman.platform.kit.names:subtask_workflow_id",
    } <= places
    assert not any("activities" in place for place in places)
