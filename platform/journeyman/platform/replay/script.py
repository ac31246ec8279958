r"""The format of replay scripts: one JSON file a task.

::

    {
      "name": "repair-package",
      "instruction": "Repair the failing test …",   the task's instruction, which the platform puts verbatim into the
                                                    first user message, inside <task> … </task>
      "match": "exact",                             or "prefix", or "regex" (matched from the start)
      "record": false,                              keep the body of each request, as it came, in a folder beside the file
      "threads": [
        {
          "role": "coder",                          planner, coder or reviewer
          "subtask": "s1",                          optional: only for this subtask
          "round": 1,                               optional: only for this review round (reviewers)
          "revision": 1,                            optional: only for this plan revision (planners)
          "turns": [
            {
              "text": "Let me look.",  "text_times": 1,        how often the text is repeated, for huge answers
              "reasoning": "The test says …",
              "tool_calls": [{"name": "shell", "arguments": {"command": "pytest -q"}},
                             {"name": "shell", "raw_arguments": "{\"command\": "}],      sent as it is
              "delay_ms": 0,                         silence before the first chunk
              "delta_ms": 0,                         pause between chunks
              "expect": "1 failed",                  what the messages since the last answer must contain;
              "expect_regex": "\\d+ failed",        otherwise HTTP 422: the script has lost touch with the task
              "usage": {"prompt_tokens": 10, …},     instead of numbers derived from the byte counts
              "repeat": 1,                           this turn answers so many times in a row
              "fault": {"kind": "status", "status": 429, "retry_after": 1, "times": 2}
            }
          ]
        }
      ]
    }

The thread that names most of what the conversation is (subtask, round, revision) plays; among equals the first.
A fault strikes the first ``times`` calls (default 1) that reach its turn; after that the turn plays. Kinds: ``status``
(an HTTP error), ``timeout`` (``seconds`` of silence, then the connection drops), ``break_stream`` (the connection drops
after ``after_chunks`` chunks, or with ``"how": "eof"`` the stream ends there as if it were whole), ``disconnect`` (drops
before any answer), ``malformed`` (a chunk that is no JSON) and ``empty`` (a finished answer with nothing in it; the conversation counts it as an answer, so the turn after it is next).
"""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from journeyman.agents.roles import Role


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Fault(_Part):
    times: Annotated[int, Field(ge=1)] = 1


class StatusFault(_Fault):
    kind: Literal["status"]
    status: Annotated[int, Field(ge=400, le=599)]
    retry_after: int | str | None = None
    message: str = "A fault written in the script."


class TimeoutFault(_Fault):
    kind: Literal["timeout"]
    seconds: Annotated[float, Field(gt=0)] = 3600.0


class BreakStreamFault(_Fault):
    kind: Literal["break_stream"]
    after_chunks: Annotated[int, Field(ge=0)] = 1
    how: Literal["reset", "eof"] = "reset"


class DisconnectFault(_Fault):
    kind: Literal["disconnect"]


class MalformedFault(_Fault):
    kind: Literal["malformed"]


class EmptyFault(_Fault):
    kind: Literal["empty"]


Fault = Annotated[
    StatusFault | TimeoutFault | BreakStreamFault | DisconnectFault | MalformedFault | EmptyFault,
    Field(discriminator="kind"),
]


class ScriptedCall(_Part):
    name: str
    arguments: dict[str, Any] | None = None
    raw_arguments: str | None = None

    @model_validator(mode="after")
    def _one_kind_of_arguments(self) -> Self:
        if self.arguments is not None and self.raw_arguments is not None:
            msg = "give either arguments or raw_arguments, not both"
            raise ValueError(msg)
        return self


class Turn(_Part):
    text: str = ""
    text_times: Annotated[int, Field(ge=1)] = 1
    reasoning: str | None = None
    tool_calls: tuple[ScriptedCall, ...] = ()
    delay_ms: Annotated[float, Field(ge=0)] = 0
    delta_ms: Annotated[float, Field(ge=0)] = 0
    expect: str | None = None
    expect_regex: str | None = None
    usage: dict[str, Any] | None = None
    repeat: Annotated[int, Field(ge=1)] = 1
    fault: Fault | None = None

    @field_validator("expect_regex")
    @classmethod
    def _compiles(cls, value: str | None) -> str | None:
        return _checked_regex(value)


class ScriptThread(_Part):
    role: Role
    subtask: str | None = None
    round: int | None = None
    revision: int | None = None
    turns: Annotated[tuple[Turn, ...], Field(min_length=1)]

    def turn_at(self, index: int) -> tuple[int, Turn] | None:
        """Which turn answers after ``index`` answers, with its place in the list; None beyond the script's end."""
        for place, turn in enumerate(self.turns):
            if index < turn.repeat:
                return place, turn
            index -= turn.repeat
        return None


class Script(_Part):
    name: str
    instruction: Annotated[str, Field(min_length=1)]
    match: Literal["exact", "prefix", "regex"] = "exact"
    threads: Annotated[tuple[ScriptThread, ...], Field(min_length=1)]
    record: bool = False

    @model_validator(mode="after")
    def _instruction_compiles(self) -> Self:
        if self.match == "regex":
            _checked_regex(self.instruction)
        return self

    def plays(self, instruction: str) -> bool:
        """Whether the script answers for a task with that instruction. White space around it does not matter."""
        instruction = instruction.strip()
        wanted = self.instruction.strip()
        if self.match == "exact":
            return instruction == wanted
        if self.match == "prefix":
            return instruction.startswith(wanted)
        return re.match(wanted, instruction) is not None


def _checked_regex(value: str | None) -> str | None:
    if value is not None:
        try:
            re.compile(value)
        except re.error as error:
            msg = f"not a regular expression: {error}"
            raise ValueError(msg) from error
    return value
