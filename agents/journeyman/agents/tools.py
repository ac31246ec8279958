"""The tools that agents see, and the way from a model's call to checked arguments.

``parse_call`` never raises: whatever a model writes, the answer is either a ``ParsedCall`` or a ``ToolError`` whose
message goes back to the model as the result of the call, so that it can do better.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any, Final, Literal

from pydantic import BaseModel, ValidationError

from journeyman.agents import arguments
from journeyman.agents.bounds import MAX_CHARACTERS, MAX_PROBLEMS, out_of_bounds
from journeyman.agents.canonical import digest, printable
from journeyman.agents.plans import Plan, validate_plan
from journeyman.agents.roles import Role, profile
from journeyman.agents.schemas import parameters, shape


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool: its name, what the model is told about it, and the model of its arguments."""

    name: str
    description: str
    arguments: type[BaseModel]


TOOLS: Final[dict[str, Tool]] = {
    tool.name: tool
    for tool in (
        Tool(
            "shell",
            "Run a command with bash in the sandbox. Returns the exit code and the output, stdout and stderr together. "
            "Each call is a new shell that starts in /workspace: `cd` and variables do not carry over, files do. "
            "Processes that a command leaves running are ended when it ends, unless it was started with `background`.",
            arguments.Shell,
        ),
        Tool(
            "read_file",
            "Read a text file, or some lines of it. Lines come with their numbers, which are not part of the file.",
            arguments.ReadFile,
        ),
        Tool(
            "write_file",
            "Write a whole file, replacing what was there. For changes to an existing file prefer edit_file.",
            arguments.WriteFile,
        ),
        Tool(
            "edit_file",
            "Replace a piece of text in a file. `old` must occur exactly once, unless `replace_all` is true; otherwise "
            "nothing is changed and you are told how often it occurs.",
            arguments.EditFile,
        ),
        Tool(
            "search",
            "Search file contents for a regular expression. Returns path, line number and line of each match.",
            arguments.Search,
        ),
        Tool("list_files", "List files and folders with their sizes.", arguments.ListFiles),
        Tool(
            "read_output",
            "Read a byte range of an output that was cut. Use the output_id and the numbers that the marker names.",
            arguments.ReadOutput,
        ),
        Tool(
            "recall",
            "Search what was said earlier in this task, before a summary replaced it, and what was learnt in earlier "
            "tasks of this project.",
            arguments.Recall,
        ),
        Tool(
            "remember",
            "Keep one fact for later work on this project. Only what you have seen to be true; never secrets.",
            arguments.Remember,
        ),
        Tool(
            "post_note",
            "Put a note on the task's blackboard, where the other roles and the Coders of other subtasks read it.",
            arguments.PostNote,
        ),
        Tool(
            "read_notes",
            "Read the task's blackboard as it is now: how far the plan is, and the notes of all roles.",
            arguments.ReadNotes,
        ),
        Tool(
            "submit_plan",
            "Hand over the plan. This ends your work, unless the plan is sent back with what is wrong.",
            Plan,
        ),
        Tool(
            "submit_work",
            "Hand over the subtask for review. Run its acceptance commands first and read their output.",
            arguments.SubmitWork,
        ),
        Tool(
            "submit_review",
            "Hand over your verdict on the subtask. This ends your review.",
            arguments.SubmitReview,
        ),
    )
}
"""All tools in the one order in which models see them; changing it would empty every prefix cache."""

# What models call these tools when they remember other products. Only a hint for the error: nothing is guessed silently.
_ALIASES: Final = {
    "bash": "shell",
    "sh": "shell",
    "exec": "shell",
    "run": "shell",
    "run_command": "shell",
    "execute_command": "shell",
    "terminal": "shell",
    "python": "shell",
    "cat": "read_file",
    "view": "read_file",
    "open_file": "read_file",
    "create_file": "write_file",
    "str_replace": "edit_file",
    "apply_patch": "edit_file",
    "replace": "edit_file",
    "grep": "search",
    "find": "search",
    "glob": "list_files",
    "ls": "list_files",
    "list_dir": "list_files",
}
_FINISHERS: Final = frozenset(
    {"finish", "done", "submit", "complete", "final_answer", "answer", "submit_plan", "submit_work", "submit_review"}
)


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """A call that may be carried out."""

    name: str
    arguments: BaseModel
    terminal: bool
    """Whether it hands over and so ends the role's turn to act."""

    @property
    def values(self) -> dict[str, Any]:
        """The arguments as plain JSON, without those that were not given."""
        return self.arguments.model_dump(mode="json", exclude_none=True)

    @property
    def digest(self) -> str:
        """Equal for equal calls, however the model spelt them; for the circuit breaker."""
        return digest([self.name, self.values])


@dataclass(frozen=True, slots=True)
class ToolError:
    """A call that cannot be carried out, and the text that tells the model why. Nothing has been done."""

    name: str
    code: Literal["unknown_tool", "not_allowed", "invalid_json", "invalid_arguments"]
    message: str

    @property
    def digest(self) -> str:
        """Equal for calls that were refused for the same reason; for the circuit breaker."""
        return digest([self.name, self.code, self.message])


@cache
def _schemas(role: Role) -> bytes:
    return json.dumps(
        [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": parameters(tool.arguments),
                },
            }
            for tool in TOOLS.values()
            if tool.name in profile(role).tools
        ]
    ).encode()


def tool_schemas(role: Role | str) -> list[dict[str, Any]]:
    """The tools of a role in the form of the OpenAI API, always in the same order; a fresh copy at each call."""
    schemas: list[dict[str, Any]] = json.loads(_schemas(Role(role)))
    return schemas


def parse_call(role: Role | str, name: str, raw_arguments: str | Mapping[str, Any] | None) -> ParsedCall | ToolError:
    """Check a model's call. ``raw_arguments`` is the JSON text as the model wrote it, or the object if already parsed."""
    own = profile(role)
    shown = printable(name)[:80]
    if name not in own.tools:
        return _unavailable(own.tools, own.terminal_tool, name, shown, own.title)
    tool = TOOLS[name]
    if raw_arguments is None or isinstance(raw_arguments, str):
        parsed = _parse_object(tool, raw_arguments or "")
        if isinstance(parsed, ToolError):
            return parsed
    else:
        parsed = dict(raw_arguments)
    problems = out_of_bounds(parsed)
    if problems:
        return _invalid(tool, problems)
    try:
        checked = tool.arguments.model_validate({key: value for key, value in parsed.items() if value is not None})
    except ValidationError as error:
        return _invalid(tool, _problems(tool, error))
    except RecursionError:
        return _invalid(tool, ["The arguments are nested too deeply."])
    if isinstance(checked, Plan) and (wrong := validate_plan(checked)):
        return _invalid(tool, [str(problem) for problem in wrong])
    return ParsedCall(name=name, arguments=checked, terminal=name == own.terminal_tool)


def signature(name: str) -> str:
    """A tool's arguments in one line, for example ``read_file {path: string, start_line?: integer}``."""
    return f"{name} {shape(parameters(TOOLS[name].arguments))}"


def _unavailable(tools: tuple[str, ...], terminal: str, name: str, shown: str, title: str) -> ToolError:
    known = f"Your tools are: {', '.join(tools)}."
    if name in TOOLS:
        hint = f" To hand over, use `{terminal}`." if name in _FINISHERS else ""
        return ToolError(
            shown, "not_allowed", f"Error: the {title} does not have the tool `{name}`; nothing was done.{hint} {known}"
        )
    plain = name.lower().replace("-", "_").rpartition(".")[2]
    if plain in _FINISHERS:
        nearest: str | None = terminal
    else:
        close = get_close_matches(plain[:80], tools, n=1, cutoff=0.6)
        nearest = _ALIASES.get(plain) or (close[0] if close else None)
    hint = f" Did you mean `{nearest}`?" if nearest in tools else ""
    return ToolError(shown, "unknown_tool", f"Error: there is no tool `{shown}`; nothing was done.{hint} {known}")


def _parse_object(tool: Tool, raw: str) -> dict[str, Any] | ToolError:
    """The JSON object in the text. No text at all counts as no arguments: engines differ in how they write that."""
    if len(raw) > MAX_CHARACTERS:
        return _broken(
            tool, f"they have {len(raw):,} characters, more than the {MAX_CHARACTERS:,} allowed; use several calls"
        )
    if not raw.strip():
        return {}
    try:
        parsed = json.loads(raw, parse_constant=_no_constant, object_pairs_hook=_no_repetition)
    except json.JSONDecodeError as error:
        near = printable(raw[max(0, error.pos - 30) : error.pos + 30])
        return _broken(
            tool, f"{error.msg} at line {error.lineno}, column {error.colno} (character {error.pos}), near {near!r}"
        )
    except RecursionError:
        return _broken(tool, "they are nested too deeply")
    except ValueError as error:
        return _broken(tool, printable(str(error).partition(";")[0])[:300])
    if not isinstance(parsed, dict):
        return _broken(tool, f"they must be one JSON object, not {_kind(parsed)}")
    return parsed


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")


def _no_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [key for key, _ in pairs]
        repeated = next(key for key in names if names.count(key) > 1)
        raise ValueError(f"the name {repeated[:80]!r} is given more than once in one object")
    return result


def _broken(tool: Tool, reason: str) -> ToolError:
    return ToolError(
        tool.name,
        "invalid_json",
        f"Error: the arguments of `{tool.name}` are not a valid JSON object; nothing was done.\n"
        f"- Reason: {reason}.\nExpected: {signature(tool.name)}",
    )


def _invalid(tool: Tool, problems: list[str]) -> ToolError:
    lines = [f"- {printable(problem)}" for problem in problems[:MAX_PROBLEMS]]
    if len(problems) > MAX_PROBLEMS:
        lines.append(f"- and {len(problems) - MAX_PROBLEMS} more.")
    return ToolError(
        tool.name,
        "invalid_arguments",
        f"Error: the arguments of `{tool.name}` are not valid; nothing was done.\n"
        + "\n".join(lines)
        + f"\nExpected: {signature(tool.name)}",
    )


def _problems(tool: Tool, error: ValidationError) -> list[str]:
    known = list(tool.arguments.model_fields)
    lines: list[str] = []
    for detail in error.errors(include_url=False, include_context=False):
        where = _location(detail["loc"])
        if detail["type"] == "missing":
            lines.append(f"`{where}` is missing.")
        elif detail["type"] == "extra_forbidden":
            close = get_close_matches(str(detail["loc"][-1])[:80], known, n=1) if len(detail["loc"]) == 1 else []
            hint = f"; did you mean `{close[0]}`?" if close else "."
            lines.append(f"`{where}` is not an argument of {tool.name}{hint}")
        elif detail["type"] == "value_error":
            reason = detail["msg"].removeprefix("Value error, ")
            lines.append(f"`{where}`: {reason}." if where else f"{reason}.")
        else:
            lines.append(f"`{where}`: {detail['msg']}, but it is {_kind(detail['input'])}.")
    return lines


def _location(loc: tuple[int | str, ...]) -> str:
    text = ""
    for part in loc:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part[:80]}" if text else part[:80]
    return text


def _kind(value: Any) -> str:
    """A value named for the model without being repeated in full: it may be a megabyte, or nested a thousand deep."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return f"the boolean {str(value).lower()}"
    if isinstance(value, int | float):
        return f"the number {value}" if abs(value) < 1e15 else "a very large number"
    if isinstance(value, str):
        if len(value) <= 60:
            return f"the string {json.dumps(printable(value), ensure_ascii=False)}"
        return f"a string of {len(value):,} characters"
    if isinstance(value, list):
        return f"an array of {len(value)}"
    return "an object"


__all__ = [
    "TOOLS",
    "ParsedCall",
    "Plan",
    "Tool",
    "ToolError",
    "parse_call",
    "signature",
    "tool_schemas",
    "validate_plan",
]
