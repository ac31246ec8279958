"""Golden histories: what workflows recorded on the real stack, and the workflow code that recorded it."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from journeyman.platform.kit.temporal import data_converter
from journeyman.workflows.fingerprint import covered_code, fingerprint
from journeyman.workflows.worker import WORKFLOWS, checking_runner

FOLDER = Path(__file__).parents[1] / "workflows" / "histories"
CODE = FOLDER / "code.json"
"""The fingerprint of the workflow code that the histories belong to, and a digest of each definition that it covers."""

OF_THE_MACHINE = {"identity", "stackTrace"}
"""Fields of histories that name processes, hosts and paths of the machine that recorded them; no replay needs them."""


def replayer() -> Replayer:
    return Replayer(workflows=WORKFLOWS, workflow_runner=checking_runner(), data_converter=data_converter(None))


def stored() -> Iterator[tuple[str, WorkflowHistory]]:
    """Name and history of each recorded run."""
    for file in sorted(FOLDER.glob("*/*.json")):
        content = json.loads(file.read_text())
        yield f"{file.parent.name}/{file.stem}", WorkflowHistory.from_json(content["workflow_id"], content["history"])


def code() -> dict[str, Any]:
    """What ``code.json`` holds for the workflow code as it is now."""
    definitions = {}
    for entry in covered_code():
        place, _, tree = entry.partition(" = ")
        definitions[place] = hashlib.sha256(tree.encode()).hexdigest()[:12]
    return {"fingerprint": fingerprint(), "definitions": definitions}


def changes(recorded: dict[str, str], current: dict[str, str]) -> list[str]:
    """The definitions in which two versions of the workflow code differ."""
    return sorted(place for place in recorded.keys() | current.keys() if recorded.get(place) != current.get(place))


def write_code() -> None:
    CODE.write_text(json.dumps(code(), indent=1, sort_keys=True) + "\n")
