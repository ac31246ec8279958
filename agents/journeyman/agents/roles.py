"""The three roles: what each is told, which tools it has and with which one it hands over."""

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Final


class Role(StrEnum):
    """Who speaks in a thread."""

    PLANNER = "planner"
    CODER = "coder"
    REVIEWER = "reviewer"


@dataclass(frozen=True, slots=True)
class RoleProfile:
    """What distinguishes one role. ``tools`` are in the order in which the model sees them.

    ``forks_workspace``: the role works in a disposable fork, so that nothing it does changes the work.
    """

    role: Role
    title: str
    tools: tuple[str, ...]
    terminal_tool: str
    forks_workspace: bool


PROFILES: Final[dict[Role, RoleProfile]] = {
    Role.PLANNER: RoleProfile(
        role=Role.PLANNER,
        title="Planner",
        tools=(
            "shell",
            "read_file",
            "search",
            "list_files",
            "read_output",
            "recall",
            "post_note",
            "read_notes",
            "submit_plan",
        ),
        terminal_tool="submit_plan",
        forks_workspace=True,
    ),
    Role.CODER: RoleProfile(
        role=Role.CODER,
        title="Coder",
        tools=(
            "shell",
            "read_file",
            "write_file",
            "edit_file",
            "search",
            "list_files",
            "read_output",
            "recall",
            "remember",
            "post_note",
            "read_notes",
            "submit_work",
        ),
        terminal_tool="submit_work",
        forks_workspace=False,
    ),
    Role.REVIEWER: RoleProfile(
        role=Role.REVIEWER,
        title="Reviewer",
        tools=(
            "shell",
            "read_file",
            "search",
            "list_files",
            "read_output",
            "recall",
            "post_note",
            "read_notes",
            "submit_review",
        ),
        terminal_tool="submit_review",
        forks_workspace=True,
    ),
}


def profile(role: Role | str) -> RoleProfile:
    """The profile of a role; ``ValueError`` for a name that is none."""
    return PROFILES[Role(role)]


@cache
def prompt(role: Role | str) -> str:
    """The system prompt: the role's own file, then what all roles are told about their workplace.

    Its first line is ``You are the <Title> of Journeyman.``; engines that play scripts recognise the role by it.
    """
    name = Role(role).value
    folder = files("journeyman.agents") / "prompts"
    own = (folder / f"{name}.md").read_text(encoding="utf-8")
    shared = (folder / "workplace.md").read_text(encoding="utf-8")
    return own.rstrip("\n") + "\n" + shared.rstrip("\n") + "\n"
