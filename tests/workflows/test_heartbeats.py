"""Every activity is watched: one that is lost with its worker is missed within seconds, not at its timeout."""

import ast
import inspect
from pathlib import Path

from journeyman.workflows import activities, heartbeat

FOLDER = Path(inspect.getfile(activities)).parent
STARTS = {"workflow.execute_activity", "workflow.start_activity"}


def test_every_activity_beats() -> None:
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.AsyncFunctionDef):
                decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
                if "activity.defn" in decorators:
                    assert decorators == ["activity.defn", heartbeat.beating.__name__], f"{path.name}: {node.name}"


def test_every_activity_is_called_with_a_heartbeat_timeout() -> None:
    calls = 0
    for path in FOLDER.parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in STARTS:
                calls += 1
                keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                assert keywords.get("heartbeat_timeout") == "timing.HEARTBEAT_TIMEOUT", ast.unparse(node)[:200]
    assert calls
