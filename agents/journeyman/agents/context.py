"""The messages of a conversation, byte for byte.

A thread is append-only: the request of turn n+1 begins with the bytes of turn n, because engines keep the work they
have done for a prefix only as long as it does not change. So there is no clock, no random id and no counter of what is
left in anything built here; what changes is appended as a new message.

The first user message of each role is a contract: the task's instruction verbatim between ``<task>`` lines, then header
lines that say where in the task the thread belongs: ``Revision: n`` for the Planner, ``Subtask: id`` for Coder and
Reviewer, ``Round: n`` for the Reviewer.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from journeyman.agents.arguments import Finding
from journeyman.agents.board import Board, opening_text
from journeyman.agents.budget import Limits
from journeyman.agents.canonical import canonical_json, is_json_object, printable
from journeyman.agents.output import cut_text
from journeyman.agents.plans import Subtask
from journeyman.agents.roles import Role, profile, prompt

Message = dict[str, Any]
"""One message in the form of the OpenAI chat API."""

PERSON_MARK: Final = "[Message from a person]"
REVIEW_MARK: Final = "[Review, round "
"""How messages begin that a compaction carries over as they are."""

DIFF_LIMIT: Final = 64 * 1024
SUMMARY_LIMIT: Final = 16 * 1024
MAX_MEMORIES: Final = 20
MAX_CONFLICTS: Final = 50


@dataclass(frozen=True, slots=True)
class Environment:
    """What is true of the sandbox from the first step to the last. ``egress`` lists the hosts that can be reached."""

    toolset: str = "python"
    egress: tuple[str, ...] = ()
    cpus: float | None = None
    memory_mb: int | None = None
    disk_mb: int | None = None
    variables: tuple[str, ...] = ()
    """Names of the environment variables that are set, secrets among them; never their values."""
    budget: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True)
class TaskBrief:
    """What every role is told about the task."""

    instruction: str
    environment: Environment = field(default_factory=Environment)
    acceptance: tuple[str, ...] = ()
    memories: tuple[str, ...] = ()
    board: Board = field(default_factory=Board)


@dataclass(frozen=True, slots=True)
class DoneSubtask:
    """A subtask that others can build on, in the words of the Coder who did it."""

    id: str
    title: str
    summary: str


def system_message(role: Role | str) -> Message:
    """The system message; its first line names the role."""
    return {"role": "system", "content": prompt(role)}


def planner_opening(
    task: TaskBrief, *, revision: int = 1, reason: str = "", done: Sequence[DoneSubtask] = ()
) -> Message:
    """The Planner's first user message. For ``revision`` > 1, ``reason`` says why the former plan did not do."""
    parts = [_task(task), f"Revision: {revision}"]
    if revision > 1:
        parts.append(_section("Why a new plan is needed", cut_text(reason, SUMMARY_LIMIT)))
        parts.extend(_done(done))
        parts.append("Look at the workspace as it is now, and plan what is still missing.")
    else:
        parts.append("Explore the workspace, then submit a plan.")
    return user_message("\n\n".join(parts))


def coder_opening(task: TaskBrief, subtask: Subtask, *, done: Sequence[DoneSubtask] = ()) -> Message:
    """The Coder's first user message. ``done`` are the subtasks whose results this one finds in the workspace."""
    parts = [_task(task), *_done(done), _subtask(subtask), "Do this subtask, check it, then submit your work."]
    return user_message("\n\n".join(parts))


def reviewer_opening(
    task: TaskBrief,
    subtask: Subtask,
    *,
    round_number: int,
    summary: str,
    diff: str,
    former_findings: Sequence[Finding] = (),
) -> Message:
    """The Reviewer's first user message; the diff is cut in the middle when it is long."""
    parts = [_task(task), _subtask(subtask), f"Round: {round_number}"]
    if former_findings:
        parts.append(_section("Findings of the former round", findings_text(former_findings)))
    parts.append(f"<summary>\n{cut_text(summary, SUMMARY_LIMIT)}\n</summary>")
    parts.append(f"<diff>\n{cut_text(diff, DIFF_LIMIT).rstrip()}\n</diff>" if diff.strip() else "The diff is empty.")
    parts.append("The summary is the Coder's claim. Check it, then submit your review.")
    return user_message("\n\n".join(parts))


def user_message(text: str) -> Message:
    return {"role": "user", "content": printable(text)}


def user_note(text: str) -> Message:
    """A note of the platform in a running conversation."""
    return user_message(f"[Note of the platform]\n{text}")


def person_message(text: str) -> Message:
    """A message from a person who steers the task, as it was written."""
    return user_message(f"{PERSON_MARK}\n{text}")


def findings_note(round_number: int, findings: Sequence[Finding]) -> Message:
    """What the Coder hears of a review that requested changes."""
    return user_message(
        f"{REVIEW_MARK}{round_number}: changes requested]\n{findings_text(findings)}\n\n"
        "Deal with every finding, run the checks again, then submit your work again."
    )


def merge_conflict_note(conflicts: Sequence[tuple[str, str]]) -> Message:
    """Said when approved work conflicts with what other subtasks did meanwhile: each path, as snapshots spell it, with the kind
    of its conflict.
    """
    listed = "\n".join(f"- /{printable(path)} ({kind})" for path, kind in conflicts[:MAX_CONFLICTS])
    if len(conflicts) > MAX_CONFLICTS:
        listed += f"\n- and {len(conflicts) - MAX_CONFLICTS} more"
    return user_note(
        "Your work was approved, but other subtasks changed the same places meanwhile. Your workspace is now a new sandbox "
        "that holds their work and yours, merged as far as it could be; running processes are gone. These paths are in "
        f"conflict:\n{listed}\nText files have both versions between the usual markers (<<<<<<<, =======, >>>>>>>). "
        "Resolve every conflict so that both intentions hold, remove the markers, run the checks again, then submit your "
        "work again."
    )


def sandbox_replaced_note(lost: Sequence[str] = ()) -> Message:
    """Said when a sandbox was lost: files are those of the last checkpoint, processes are gone."""
    processes = "".join(f"\n- {command}" for command in lost)
    return user_note(
        "The sandbox was lost and replaced. The files are those of the last checkpoint: what your latest commands wrote "
        "may be missing, so look before you rely on it. Whatever ran in the background is gone, and so is everything "
        "outside /workspace and /artifacts."
        + (f" These background commands may have been running:{processes}" if lost else "")
    )


def resumed_note() -> Message:
    """Said in each conversation that goes on from a checkpoint, after a rewind or in a fork."""
    return user_note(
        "A person has the task go on from this point, in a new sandbox. The files are those after your last step above. What "
        "was done later is set aside. Whatever ran in the background is gone, and so is everything outside /workspace and "
        "/artifacts."
    )


def no_tool_call_note(role: Role | str) -> Message:
    """Said when an answer called no tool, which would otherwise end in silence."""
    return user_note(
        "Your answer called no tool, so that nothing happened. Go on with a tool call; when you are done or cannot go "
        f"on, call `{profile(role).terminal_tool}`."
    )


def assistant_message(
    text: str | None, tool_calls: Sequence[Mapping[str, Any]] = (), reasoning: str | None = None
) -> Message:
    """A model's answer as it is kept and sent back.

    ``tool_calls`` are ``{"id", "name", "arguments"}`` with ``arguments`` as the text that the model wrote. Text that is
    not a JSON object is wrapped into one, because chat templates of several engines parse it and would refuse this
    conversation for ever. Ids that are missing or used twice are replaced by ones that follow from the position.
    Reasoning goes back to the model as ``reasoning_content``: engines that get it keep their prefix.
    """
    message: Message = {"role": "assistant", "content": printable(text) if text else None}
    if tool_calls:
        used: set[str] = set()
        calls: list[Message] = []
        for index, call in enumerate(tool_calls):
            identifier = printable(str(call.get("id") or ""))
            if not identifier or identifier in used:
                identifier = f"call_{index}"
                while identifier in used:
                    identifier += "_"
            used.add(identifier)
            function = {
                "name": printable(str(call.get("name") or "")),
                "arguments": _object_text(call.get("arguments")),
            }
            calls.append({"id": identifier, "type": "function", "function": function})
        message["tool_calls"] = calls
    elif not text:
        # Several APIs refuse an assistant message without any content.
        message["content"] = "(empty answer)"
    if reasoning:
        message["reasoning_content"] = printable(reasoning)
    return message


def tool_message(call_id: str, text: str) -> Message:
    """The result of one call."""
    return {"role": "tool", "tool_call_id": call_id, "content": printable(text) or "(no output)"}


def findings_text(findings: Sequence[Finding]) -> str:
    """Numbered findings, one per line or paragraph."""
    lines: list[str] = []
    for number, finding in enumerate(findings, 1):
        where = ""
        if finding.path:
            where = f" {finding.path}:{finding.line}" if finding.line else f" {finding.path}"
        lines.append(f"{number}. [{finding.severity}]{where}: {finding.message}")
    return "\n".join(lines)


def _task(task: TaskBrief) -> str:
    parts = [f"<task>\n{task.instruction}\n</task>", _section("Environment", _environment(task.environment))]
    if task.acceptance:
        parts.append(
            _section("Acceptance commands of the task, run by the platform at the end", _commands(task.acceptance))
        )
    if task.memories:
        known = "\n".join(f"- {cut_text(memory, 2000)}" for memory in task.memories[:MAX_MEMORIES])
        parts.append(_section("Known from earlier tasks of this project (check before relying on it)", known))
    if board := opening_text(task.board):
        parts.append(_section("The task's blackboard when this conversation began", board))
    return "\n\n".join(parts)


def _environment(environment: Environment) -> str:
    lines = [f"- Toolset: {environment.toolset}"]
    if environment.egress:
        lines.append(f"- Network: only these hosts: {', '.join(environment.egress)}")
    else:
        lines.append("- Network: none")
    resources = [
        text
        for value, text in (
            (environment.cpus, f"{environment.cpus:g} CPUs" if environment.cpus else ""),
            (environment.memory_mb, f"{environment.memory_mb} MB memory"),
            (environment.disk_mb, f"{environment.disk_mb} MB disk"),
        )
        if value
    ]
    if resources:
        lines.append(f"- Limits of the sandbox: {', '.join(resources)}")
    if environment.variables:
        lines.append(f"- Environment variables that are set: {', '.join(sorted(environment.variables))}")
    if budget := environment.budget.described():
        lines.append(f"- Budget of the whole task: {budget}")
    return "\n".join(lines)


def _subtask(subtask: Subtask) -> str:
    text = f"Subtask: {subtask.id}\nTitle: {subtask.title}\nInstructions:\n{subtask.instructions}"
    if subtask.acceptance:
        text += f"\n\nAcceptance commands of this subtask:\n{_commands(subtask.acceptance)}"
    return text


def _done(done: Sequence[DoneSubtask]) -> list[str]:
    if not done:
        return []
    lines = [f"- {item.id} ({item.title}): {cut_text(item.summary, 4000)}" for item in done]
    return [_section("Done already, in the workspace", "\n".join(lines))]


def _commands(commands: Sequence[str]) -> str:
    return "\n".join(f"```sh\n{command}\n```" if "\n" in command else f"- `{command}`" for command in commands)


def _section(title: str, text: str) -> str:
    return f"# {title}\n{text}"


def written_arguments(text: str) -> str:
    """The arguments as the model wrote them, from a stored call: undoes the wrapping of ``assistant_message``."""
    if not text.startswith('{"invalid_json":'):
        return text
    match json.loads(text):
        case {"invalid_json": str(written), **others} if not others:
            return written
        case _:
            return text


def _object_text(raw: Any) -> str:
    """The arguments as text of a JSON object, unchanged when the model wrote one."""
    if isinstance(raw, Mapping):
        return canonical_json(dict(raw)).decode()
    text = printable(str(raw or ""))
    if not text.strip():
        return "{}"
    return text if is_json_object(text) else canonical_json({"invalid_json": text}).decode()
