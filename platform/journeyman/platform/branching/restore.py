"""Where a task goes on from a checkpoint: pure rules over what the store holds.

The checkpoint's own thread goes on after the step it was made of. Every other thread that was open then is cut to the last
checkpoint of its own: later messages may be half a batch of calls whose effects on its files are lost. A thread that had
none by then is opened anew.

A thread whose last step handed over is taken up *at* that step rather than after it: its answer and its results are
stored, so that no model is called and nothing is run again, and the workflow learns from them once more what follows.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Final

from pydantic import BaseModel

from journeyman.agents.roles import Role
from journeyman.platform.branching.history import History, PastSubtask
from journeyman.platform.kit.database import Json
from journeyman.platform.tasks.contract import Phase, SubtaskProgress, TaskProgress
from journeyman.platform.threads.repository import thread_id_for

BACK_BEFORE_THE_PLAN: Final = "A person has taken the task back to before its first plan."


@dataclass(frozen=True, slots=True)
class Conversation:
    """A thread that was open at the checkpoint."""

    id: str
    role: str
    subtask_id: str | None
    revision: int
    attempt: int
    origin: Json | None = None


class Cut(BaseModel):
    """Where a thread is cut: after the checkpoint of its step ``step``, with ``cursor`` messages. Kept as a copy's origin."""

    thread_id: str
    step: int
    submitted: bool
    cursor: int
    snapshot: str
    state: Json
    """``{segment, segment_start, inbox_seq, acted_seq, base_snapshot}``."""
    order: int
    """Of two threads of a task, the one that is cut later has the higher number."""

    @property
    def next_step(self) -> int:
        return self.step if self.submitted else self.step + 1


@dataclass(frozen=True, slots=True)
class Kept:
    """A conversation that is carried over."""

    conversation: Conversation
    cut: Cut

    @property
    def id(self) -> str:
        return self.conversation.id


@dataclass(frozen=True, slots=True)
class Point:
    """A checkpoint with what the store knows of it.

    ``own``: the last checkpoint of each thread, up to this one. ``subtasks``: ids in plan order, by revision of the plans
    in ``history``. ``taken``: all revisions that the task has plans of. ``last_revision``: the highest number ever used.
    ``conflicts``: how often each Coder's thread was told of a merge conflict.
    """

    thread_id: str | None
    plan_revision: int
    conversations: Sequence[Conversation]
    own: Mapping[str, Cut]
    history: History
    subtasks: Mapping[int, Sequence[str]]
    taken: AbstractSet[int]
    last_revision: int
    conflicts: Mapping[str, int] = field(default_factory=dict)

    def alone(self) -> "Point":
        """The point for a task that has no other branch."""
        return replace(
            self,
            taken=frozenset(self.history.revisions),
            last_revision=max(
                (self.plan_revision, *self.history.revisions, *(one.revision for one in self.conversations)), default=0
            ),
        )


@dataclass(frozen=True, slots=True)
class SubtaskState:
    """Of one subtask, as it is to be. ``coder``: the thread (by its old id) that knows its summary and base."""

    revision: int
    id: str
    state: str
    rounds: int = 0
    snapshot: str | None = None
    coder: Kept | None = None


@dataclass(frozen=True, slots=True)
class Restored:
    """How the task goes on. Threads are named by their old ids; ``names`` gives the new ones."""

    phase: Phase
    revision: int
    plans: int
    reason: str | None
    kept: tuple[Kept, ...]
    dropped: tuple[Conversation, ...]
    planner: Kept | None
    done: tuple[str, ...]
    subtasks: tuple[SubtaskState, ...]
    going_on: Mapping[str, SubtaskProgress]
    last_revision: int

    @property
    def resumed(self) -> set[str]:
        """Old ids of the threads in which something is still to be said."""
        if self.phase == Phase.PLAN:
            planner = self.planner
            return set() if planner is None or planner.cut.submitted else {planner.id}
        threads = {progress.coder for progress in self.going_on.values()}
        submitted = {kept.id for kept in self.kept if kept.cut.submitted}
        reviewers = {progress.reviewer for progress in self.going_on.values()} - submitted
        return {thread for thread in threads | reviewers if thread is not None}

    def names(self, task_id: str, epoch: int) -> dict[str, str]:
        """The id of each thread's copy in a task and epoch."""
        return {
            kept.id: thread_id_for(
                task_id,
                kept.conversation.role,
                kept.conversation.subtask_id,
                self.revision_of(kept),
                kept.conversation.attempt,
                epoch,
            )
            for kept in self.kept
        }

    def revision_of(self, kept: Kept) -> int:
        """A Planner that goes on may have to submit under another number than the one it began with."""
        return self.revision if kept is self.planner else kept.conversation.revision

    def progress(self, names: Mapping[str, str], epoch: int, paused_for: str | None) -> TaskProgress:
        return TaskProgress(
            phase=self.phase,
            revision=self.revision,
            last_revision=self.last_revision,
            plans=self.plans,
            reason=self.reason,
            planner_step=self.planner.cut.next_step if self.planner is not None else 0,
            done=list(self.done),
            subtasks={
                subtask_id: progress.model_copy(
                    update={
                        "coder": names[progress.coder] if progress.coder else None,
                        "reviewer": names[progress.reviewer] if progress.reviewer else None,
                    }
                )
                for subtask_id, progress in self.going_on.items()
            },
            epoch=epoch,
            paused_for=paused_for,
        )


def restore(point: Point) -> Restored:
    """How the task goes on from the point."""
    kept, dropped = _cut(point)
    planner = _open_planner(point, kept)
    plans = point.history.plans
    if planner is not None or point.plan_revision == 0:
        revision = point.plan_revision + 1 if planner is None else planner.conversation.revision
        reason = None
        submitted = planner is not None and planner.cut.submitted
        if not submitted and revision in point.taken:
            # A plan of another branch has this number for good.
            revision = point.last_revision + 1
            reason = BACK_BEFORE_THE_PLAN
        return Restored(
            phase=Phase.PLAN,
            revision=revision,
            plans=plans + (point.history.given_up and not submitted),
            reason=reason,
            kept=kept,
            dropped=dropped,
            planner=planner,
            done=(),
            subtasks=_subtasks(point, kept, {}, planning=True),
            going_on={},
            last_revision=max(point.last_revision, revision),
        )
    going_on = _going_on(point, kept)
    subtasks = _subtasks(point, kept, going_on)
    return Restored(
        phase=Phase.WORK,
        revision=point.plan_revision,
        plans=plans,
        reason=None,
        kept=kept,
        dropped=dropped,
        planner=None,
        done=tuple(each.id for each in subtasks if each.revision == point.plan_revision and each.state == "completed"),
        subtasks=subtasks,
        going_on=going_on,
        last_revision=max(point.last_revision, point.plan_revision),
    )


def _cut(point: Point) -> tuple[tuple[Kept, ...], tuple[Conversation, ...]]:
    """The threads that are kept, in the order of their cuts, and those that had no checkpoint of their own."""
    kept: list[Kept] = []
    dropped: list[Conversation] = []
    for conversation in point.conversations:
        cut = point.own.get(conversation.id)
        if cut is None and conversation.origin is not None:
            cut = Cut.model_validate(conversation.origin).model_copy(update={"thread_id": conversation.id})
        if cut is None:
            dropped.append(conversation)
        else:
            kept.append(Kept(conversation, cut))
    kept.sort(key=lambda each: (each.id in point.own, each.cut.order))
    numbered = tuple(
        Kept(each.conversation, each.cut.model_copy(update={"order": order})) for order, each in enumerate(kept, 1)
    )
    return numbered, tuple(dropped)


def _open_planner(point: Point, kept: Sequence[Kept]) -> Kept | None:
    """The Planner that is at work at the point, or that hands its plan over with it."""
    planners = [each for each in kept if each.conversation.role == Role.PLANNER]
    newest = max(planners, key=lambda each: each.conversation.revision, default=None)
    if newest is None:
        return None
    if newest.conversation.revision > point.plan_revision or newest.id == point.thread_id:
        return newest
    return None


def _going_on(point: Point, kept: Sequence[Kept]) -> dict[str, SubtaskProgress]:
    """The subtasks of the plan in force that are neither done nor still to begin.

    One that was given up is among them: its last step tells again what became of it, and a plan that follows from it has
    the other subtasks' work too.
    """
    going_on: dict[str, SubtaskProgress] = {}
    for subtask_id in point.subtasks.get(point.plan_revision, ()):
        past = point.history.subtask(point.plan_revision, subtask_id)
        coder = _coder(kept, point.plan_revision, subtask_id)
        if past is None or past.state == "completed" or coder is None:
            continue
        going_on[subtask_id] = _subtask_progress(
            coder, _last_reviewer(kept, point.plan_revision, subtask_id), point.conflicts.get(coder.id, 0)
        )
    return going_on


def _subtask_progress(coder: Kept, reviewer: Kept | None, conflicts: int) -> SubtaskProgress:
    if reviewer is not None and reviewer.cut.order > coder.cut.order:
        return SubtaskProgress(
            round=reviewer.conversation.attempt,
            coder=coder.id,
            coder_step=coder.cut.step + 1,
            reviewer=reviewer.id,
            reviewer_step=reviewer.cut.next_step,
            conflicts=conflicts,
        )
    return SubtaskProgress(
        round=1 if reviewer is None else reviewer.conversation.attempt + 1,
        coder=coder.id,
        coder_step=coder.cut.next_step,
        conflicts=conflicts,
    )


def _subtasks(
    point: Point, kept: Sequence[Kept], going_on: Mapping[str, SubtaskProgress], *, planning: bool = False
) -> tuple[SubtaskState, ...]:
    """Of all plans on the way to the point, in their order."""
    states: list[SubtaskState] = []
    for revision in point.history.revisions:
        in_force = revision == point.plan_revision
        for subtask_id in point.subtasks.get(revision, ()):
            past = point.history.subtask(revision, subtask_id)
            coder = _coder(kept, revision, subtask_id)
            if in_force and subtask_id in going_on:
                reviewer = _last_reviewer(kept, revision, subtask_id)
                rounds = 0 if reviewer is None else reviewer.conversation.attempt
                states.append(SubtaskState(revision, subtask_id, "running", rounds=rounds, coder=coder))
            elif past is not None and _has_ended(past, in_force=in_force and not planning):
                states.append(SubtaskState(revision, subtask_id, past.state, past.rounds, past.snapshot, coder))
            else:
                states.append(SubtaskState(revision, subtask_id, "pending"))
    return tuple(states)


def _has_ended(past: PastSubtask, *, in_force: bool) -> bool:
    """Of a plan that is being carried out, a failed subtask whose thread is lost is begun anew."""
    return past.state == "completed" or (past.state == "failed" and not in_force)


def _coder(kept: Sequence[Kept], revision: int, subtask_id: str) -> Kept | None:
    return next((each for each in kept if _belongs(each, Role.CODER, revision, subtask_id)), None)


def _last_reviewer(kept: Sequence[Kept], revision: int, subtask_id: str) -> Kept | None:
    reviewers = [each for each in kept if _belongs(each, Role.REVIEWER, revision, subtask_id)]
    return max(reviewers, key=lambda each: each.conversation.attempt, default=None)


def _belongs(kept: Kept, role: str, revision: int, subtask_id: str) -> bool:
    one = kept.conversation
    return (one.role, one.revision, one.subtask_id) == (role, revision, subtask_id)
