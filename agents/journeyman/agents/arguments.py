"""The arguments of every tool, as models: the one source of both the checks and the schemas that models are shown.

Strict on purpose: ``"5"`` is not a number and unknown names are refused, because a call that is guessed at does
something else than the agent believes. Two habits of models that carry no ambiguity are let through: ``null`` for an
optional argument, and ``30.0`` for 30.
"""

from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

DEFAULT_TIMEOUT_S: Final = 120
MAX_TIMEOUT_S: Final = 3600
MAX_LIST_DEPTH: Final = 10


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]
Path = Annotated[str, Field(min_length=1, max_length=4096)]


class Arguments(BaseModel):
    """Base of all arguments."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Shell(Arguments):
    command: str = Field(min_length=1, max_length=200_000, description="Run by bash in /workspace.")
    timeout_s: Annotated[Whole, Field(ge=1, le=MAX_TIMEOUT_S)] | None = Field(
        default=None,
        description=f"Seconds after which the command and all its children are killed, 1 to {MAX_TIMEOUT_S}. "
        f"Default {DEFAULT_TIMEOUT_S}.",
    )
    background: bool | None = Field(
        default=None,
        description="Start it and return at once; it goes on running, and so does what it starts. For servers. "
        "Default false.",
    )


class ReadFile(Arguments):
    path: Path = Field(description="Absolute, or relative to /workspace.")
    start_line: Annotated[Whole, Field(ge=1)] | None = Field(
        default=None, description="First line to return, counted from 1. Default 1."
    )
    end_line: Annotated[Whole, Field(ge=1)] | None = Field(
        default=None, description="Last line to return, included. Default: the end of the file."
    )

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.start_line is not None and self.end_line is not None and self.end_line < self.start_line:
            raise ValueError(f"end_line ({self.end_line}) comes before start_line ({self.start_line})")
        return self


class WriteFile(Arguments):
    path: Path = Field(description="Absolute, or relative to /workspace. Missing folders are made.")
    content: str = Field(description="The whole new content of the file, ending with a newline as a rule.")


class EditFile(Arguments):
    path: Path = Field(description="Absolute, or relative to /workspace.")
    old: str = Field(
        min_length=1,
        description="The exact text to replace, whitespace included, with enough lines around it to occur only once.",
    )
    new: str = Field(description="The text to put in its place; empty to delete.")
    replace_all: bool | None = Field(
        default=None, description="Replace every occurrence instead of requiring exactly one. Default false."
    )

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if self.old == self.new:
            raise ValueError("old and new are the same, so that the edit would change nothing")
        return self


class Search(Arguments):
    pattern: str = Field(min_length=1, max_length=10_000, description="Regular expression, matched line by line.")
    path: Path | None = Field(default=None, description="File or folder to search. Default /workspace.")
    glob: str | None = Field(
        default=None, min_length=1, max_length=1000, description="Only files whose name matches, for example `*.py`."
    )


class ListFiles(Arguments):
    path: Path | None = Field(default=None, description="Folder to list. Default /workspace.")
    depth: Annotated[Whole, Field(ge=1, le=MAX_LIST_DEPTH)] | None = Field(
        default=None, description=f"How many levels down, 1 to {MAX_LIST_DEPTH}. Default 2."
    )


class ReadOutput(Arguments):
    output_id: str = Field(min_length=1, max_length=200, description="As named by the marker in the cut output.")
    start: Annotated[Whole, Field(ge=0)] = Field(description="First byte to return, counted from 0.")
    end: Annotated[Whole, Field(ge=1)] = Field(description="Byte to stop before; the marker names the ranges.")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.end <= self.start:
            raise ValueError(f"end ({self.end}) must be greater than start ({self.start})")
        return self


class Recall(Arguments):
    query: str = Field(min_length=1, max_length=2000, description="What you want to know, in plain words.")


class Remember(Arguments):
    text: str = Field(
        min_length=1, max_length=4000, description="One fact that stands on its own: what, where, and how you know it."
    )


class PostNote(Arguments):
    kind: Literal["decision", "finding", "promise", "note"] = Field(
        description="decision: what others must follow. finding: what others should know. promise: what you will do or "
        "what somebody must still do. note: anything else."
    )
    text: str = Field(
        min_length=1,
        max_length=4000,
        description="One thing that stands on its own; others have not seen what you saw.",
    )
    closes: Annotated[Whole, Field(ge=1)] | None = Field(
        default=None, description="Number of the promise that is kept, or given up, with this note."
    )


class ReadNotes(Arguments):
    kind: Literal["decision", "finding", "promise", "note"] | None = Field(
        default=None, description="Only notes of this kind. Default: all."
    )
    after: Annotated[Whole, Field(ge=0)] | None = Field(
        default=None, description="Only notes with a higher number. Default: from the first."
    )


class SubmitWork(Arguments):
    summary: str = Field(
        min_length=1,
        max_length=50_000,
        description="What was changed and why; the commands you ran and their results; what is open or uncertain.",
    )


class Finding(Arguments):
    severity: Literal["blocker", "major", "minor"] = Field(
        description="blocker: not what was asked, or breaks something. major: wrong in a case that will occur. "
        "minor: worth doing, not worth a round by itself."
    )
    path: Path | None = Field(default=None, description="The file concerned, relative to /workspace.")
    line: Annotated[Whole, Field(ge=1)] | None = Field(default=None, description="The line concerned, counted from 1.")
    message: str = Field(
        min_length=1,
        max_length=10_000,
        description="What is wrong, how you saw it (command and output), and what would be right.",
    )


class SubmitReview(Arguments):
    verdict: Literal["approve", "request_changes"] = Field(description="Whether the subtask is done.")
    findings: list[Finding] = Field(
        default_factory=list, max_length=50, description="One entry per problem; for `approve` only minor remarks."
    )

    @model_validator(mode="after")
    def _verdict_fits_findings(self) -> Self:
        if self.verdict == "request_changes" and not self.findings:
            raise ValueError("request_changes needs at least one finding that says what to change")
        if self.verdict == "approve" and any(finding.severity != "minor" for finding in self.findings):
            raise ValueError(
                "approve goes only with minor findings; request changes, or lower the severity of what need not be fixed"
            )
        return self
