"""An agent's tool calls, in a few words for people."""

import json
from typing import Any

from journeyman.apps.cli.text import counted, one_line


def describe_call(tool: str, raw: Any) -> tuple[str, str]:
    """A tool call in a few words, and the longer text it carries. ``raw`` is what the model wrote, valid or not."""
    arguments = raw
    if isinstance(raw, str):
        try:
            arguments = json.loads(raw or "{}")
        except (ValueError, RecursionError):
            return f"{one_line(tool, 40)} with arguments that are not JSON: {one_line(raw, 80)}", ""
    if not isinstance(arguments, dict):
        return f"{one_line(tool, 40)} {one_line(str(raw), 100)}", ""

    def word(name: str, limit: int = 160) -> str:
        return one_line(str(arguments.get(name, "")), limit)

    match tool:
        case "shell":
            first, _, rest = str(arguments.get("command", "")).strip().partition("\n")
            return f"$ {one_line(first, 300)}", rest
        case "read_file":
            return f"reads {word('path')}", ""
        case "write_file":
            content = str(arguments.get("content", ""))
            return f"writes {word('path')} ({counted(len(content.splitlines()), 'line')})", content
        case "edit_file":
            return f"edits {word('path')}", _as_diff(str(arguments.get("old", "")), str(arguments.get("new", "")))
        case "search":
            where = f" in {word('path')}" if arguments.get("path") else ""
            return f"searches for {word('pattern')}{where}", ""
        case "list_files":
            return f"lists {word('path') or '.'}", ""
        case "read_output":
            return f"reads output {word('output_id', 40)} from {word('start')} to {word('end')}", ""
        case "recall":
            return f"recalls: {word('query')}", ""
        case "remember":
            return f"remembers: {word('text')}", ""
        case "post_note":
            return f"posts a {word('kind', 20)}", ""
        case "read_notes":
            return "reads the board", ""
        case "submit_plan":
            subtasks = arguments.get("subtasks")
            count = counted(len(subtasks), "subtask") if isinstance(subtasks, list) else "? subtasks"
            return f"submits a plan of {count}", ""
        case "submit_work":
            return "submits the work", str(arguments.get("summary", ""))
        case "submit_review":
            return f"submits a review: {word('verdict')}", ""
        case _:
            return f"{one_line(tool, 60)} {one_line(json.dumps(arguments, sort_keys=True), 120)}", ""


def _as_diff(old: str, new: str) -> str:
    return "\n".join([*(f"- {line}" for line in old.splitlines()), *(f"+ {line}" for line in new.splitlines())])
