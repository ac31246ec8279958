"""The Planner's plan: subtasks and what each needs first.

A plan is a directed graph without cycles. Everything here keeps the order in which the Planner wrote the subtasks, so
that the same plan always runs in the same order.
"""

import re
from collections.abc import Collection, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Final, NamedTuple, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field

MAX_SUBTASKS: Final = 30
MAX_COMMANDS: Final = 20

SUBTASK_ID: Final = re.compile(r"[a-z0-9_-]{1,40}")
SUBTASK_ID_RULE: Final = "must be 1 to 40 of a-z, 0-9, _ and -"

Command = Annotated[str, Field(max_length=20_000)]


class Subtask(BaseModel):
    """One piece of work for one Coder."""

    model_config = ConfigDict(extra="forbid", strict=True)

    id: str = Field(
        description="Short name, unique in the plan: 1 to 40 of a-z, 0-9, _ and -, for example `fix-rounding`."
    )
    title: str = Field(max_length=200, description="One line for people who watch.")
    instructions: str = Field(
        max_length=50_000,
        description="All the Coder needs: what to do and why, the files that matter, what you found out, how to check "
        "it, what is out of scope. The Coder sees nothing else of your work.",
    )
    depends_on: list[str] = Field(
        default_factory=list, description="Ids of the subtasks that must be done first. Default: none."
    )
    acceptance: list[Command] = Field(
        default_factory=list,
        max_length=MAX_COMMANDS,
        description="Shell commands, run from /workspace, that exit with 0 exactly when this subtask is done.",
    )


class Plan(BaseModel):
    """What ``submit_plan`` carries."""

    model_config = ConfigDict(extra="forbid", strict=True)

    subtasks: list[Subtask] = Field(description=f"1 to {MAX_SUBTASKS} subtasks, in a sensible order.")
    acceptance: list[Command] = Field(
        default_factory=list,
        max_length=MAX_COMMANDS,
        description="Shell commands for the task as a whole, beside those given by the user, which are always run.",
    )


class Node(Protocol):
    """What the graph functions need to know of a subtask."""

    @property
    def id(self) -> str: ...
    @property
    def depends_on(self) -> Sequence[str]: ...


N = TypeVar("N", bound=Node)
N_co = TypeVar("N_co", bound=Node, covariant=True)


class Graph(Protocol[N_co]):
    """A plan as far as its graph goes: ``Plan`` is one, and so is any object with such ``subtasks``."""

    @property
    def subtasks(self) -> Sequence[N_co]: ...


class Problem(NamedTuple):
    """What is wrong with a plan: ``field`` is where (``subtasks[0].title``), ``message`` the end of a sentence about it."""

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


def validate_plan(plan: Plan) -> list[Problem]:
    """What is wrong with the plan; empty when it can be carried out."""
    if not plan.subtasks:
        return [
            Problem("subtasks", "a plan needs at least one subtask."),
            *_empty_commands("acceptance", plan.acceptance),
        ]
    if len(plan.subtasks) > MAX_SUBTASKS:
        message = (
            f"{len(plan.subtasks)} subtasks are more than the {MAX_SUBTASKS} allowed; merge what belongs together."
        )
        return [Problem("subtasks", message)]
    problems: list[Problem] = []
    known = [subtask.id for subtask in plan.subtasks]
    for index, subtask in enumerate(plan.subtasks):
        where = f"subtasks[{index}]"
        if not SUBTASK_ID.fullmatch(subtask.id):
            problems.append(Problem(f"{where}.id", f"{_shown(subtask.id)} {SUBTASK_ID_RULE}."))
        elif subtask.id in known[:index]:
            problems.append(Problem(f"{where}.id", f"{_shown(subtask.id)} is used twice; ids must be unique."))
        if not subtask.title.strip():
            problems.append(Problem(f"{where}.title", "must not be empty."))
        if not subtask.instructions.strip():
            problems.append(Problem(f"{where}.instructions", "must not be empty; the Coder sees nothing else."))
        for dependency in subtask.depends_on:
            if dependency == subtask.id:
                problems.append(Problem(f"{where}.depends_on", f"{_shown(dependency)} cannot depend on itself."))
            elif dependency not in known:
                problems.append(Problem(f"{where}.depends_on", f"there is no subtask {_shown(dependency)}."))
        problems.extend(_empty_commands(f"{where}.acceptance", subtask.acceptance))
    problems.extend(_empty_commands("acceptance", plan.acceptance))
    if not problems and (cycle := _cycle(plan)):
        problems.append(Problem("subtasks", f"{' → '.join(cycle)} depend on each other in a circle."))
    return problems


def ready_subtasks(plan: Graph[N], done: Collection[str], failed: Collection[str] = ()) -> list[N]:
    """The subtasks that can start now: neither done nor failed, and everything they depend on is done. In plan order.

    A subtask that is already running is ready too; the caller knows what it has started.
    """
    return [
        subtask
        for subtask in plan.subtasks
        if subtask.id not in done and subtask.id not in failed and all(name in done for name in subtask.depends_on)
    ]


def _cycle(plan: Plan) -> list[str]:
    """One circle of dependencies as ids, each needing the next, the first repeated at the end; empty when there is none."""
    try:
        TopologicalSorter({subtask.id: subtask.depends_on for subtask in plan.subtasks}).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        return circle[::-1]
    return []


def _empty_commands(where: str, commands: Sequence[str]) -> list[Problem]:
    return [
        Problem(f"{where}[{index}]", "must be a shell command, not empty.")
        for index, command in enumerate(commands)
        if not command.strip()
    ]


def _shown(value: str) -> str:
    return repr(value if len(value) <= 60 else value[:57] + "…")
