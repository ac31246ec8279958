"""Where a task goes on from a checkpoint."""

from dataclasses import replace
from typing import Any

from journeyman.platform.branching.history import History, PastSubtask
from journeyman.platform.branching.restore import BACK_BEFORE_THE_PLAN, Conversation, Cut, Point, Restored, restore
from journeyman.platform.tasks.contract import SubtaskProgress

PLANNER = Conversation("planner", "planner", None, 1, 1)
CODER = Conversation("coder", "coder", "s1", 1, 1)
REVIEWER = Conversation("reviewer", "reviewer", "s1", 1, 1)
SECOND = Conversation("reviewer-2", "reviewer", "s1", 1, 2)
OTHER = Conversation("other", "coder", "s2", 1, 1)


def cut(thread: Conversation, order: int, step: int = 0, *, submitted: bool = False) -> Cut:
    return Cut(
        thread_id=thread.id, step=step, submitted=submitted, cursor=4 + step, snapshot="x", state={}, order=order
    )


PLANNED = cut(PLANNER, 10, 3, submitted=True)


def point(at: Conversation | None, *cuts: Cut, subtasks: dict[str, Any] | None = None, **changes: Any) -> Point:
    """A point of a task with subtasks s1 and s2; ``subtasks``: those begun, with their state."""
    threads = (PLANNER, CODER, REVIEWER, SECOND, OTHER)
    own = {each.thread_id: each for each in cuts}
    history = History(
        revisions=[1],
        subtasks=[PastSubtask(revision=1, id=id_, state=state) for id_, state in (subtasks or {}).items()],
    )
    whole = Point(
        thread_id=at.id if at is not None else None,
        plan_revision=1,
        conversations=[thread for thread in threads if thread.id in own],
        own=own,
        history=history,
        subtasks={1: ["s1", "s2"]},
        taken={1},
        last_revision=1,
    )
    return replace(whole, **changes)


def going_on(restored: Restored) -> SubtaskProgress:
    assert restored.phase == "work"
    (progress,) = restored.going_on.values()
    return progress


def test_before_any_plan_the_planner_begins() -> None:
    none = {"plan_revision": 0, "history": History(), "subtasks": {}, "taken": set(), "last_revision": 0}
    restored = restore(point(None, **none))
    assert (restored.phase, restored.revision, restored.reason, restored.planner) == ("plan", 1, None, None)
    later = restore(point(None, **{**none, "taken": {1, 2}, "last_revision": 3}))
    assert (later.phase, later.revision, later.reason, later.last_revision) == ("plan", 4, BACK_BEFORE_THE_PLAN, 4)


def test_a_planner_at_work_goes_on_after_its_step() -> None:
    none = {"plan_revision": 0, "history": History(), "subtasks": {}, "taken": set()}
    restored = restore(point(PLANNER, cut(PLANNER, 5, 2), **none))
    assert (restored.phase, restored.revision) == ("plan", 1)
    progress = restored.progress({"planner": "copy"}, 1, None)
    assert (progress.planner_step, progress.plans, progress.epoch) == (3, 1, 1)
    assert restored.resumed == {"planner"}


def test_a_planner_that_goes_on_does_not_take_the_number_of_a_plan_of_another_branch() -> None:
    none = {"plan_revision": 0, "history": History(), "subtasks": {}, "taken": {1, 2}, "last_revision": 2}
    restored = restore(point(PLANNER, cut(PLANNER, 5, 2), **none))
    assert (restored.revision, restored.last_revision) == (3, 3)
    (kept,) = restored.kept
    assert restored.revision_of(kept) == 3


def test_at_the_submission_of_a_plan_it_is_handed_over_again() -> None:
    restored = restore(point(PLANNER, PLANNED, taken={1, 2}, last_revision=2))
    assert (restored.phase, restored.revision, restored.last_revision) == ("plan", 1, 2)
    assert restored.progress({"planner": "p"}, 1, None).planner_step == 3
    assert restored.resumed == set()
    assert [one.state for one in restored.subtasks] == ["pending", "pending"]


def test_a_planner_of_the_next_plan_is_at_work() -> None:
    second = Conversation("planner-2", "planner", None, 2, 1)
    history = History(
        revisions=[1], given_up=True, subtasks=[PastSubtask(revision=1, id="s1", state="failed", rounds=3)]
    )
    restored = restore(
        point(
            second,
            conversations=[PLANNER, CODER, second],
            own={"planner": PLANNED, "coder": cut(CODER, 20), "planner-2": cut(second, 30, 1)},
            history=history,
        )
    )
    assert (restored.phase, restored.revision, restored.plans) == ("plan", 2, 2)
    assert [(one.id, one.state, one.rounds) for one in restored.subtasks] == [("s1", "failed", 3), ("s2", "pending", 0)]
    assert restored.resumed == {"planner-2"}


def test_a_coder_at_work() -> None:
    restored = restore(point(CODER, PLANNED, cut(CODER, 20, 4), subtasks={"s1": "running"}))
    assert going_on(restored) == SubtaskProgress(round=1, coder="coder", coder_step=5)
    assert (restored.done, restored.revision, restored.plans) == ((), 1, 1)
    assert [one.state for one in restored.subtasks] == ["running", "pending"]
    assert restored.resumed == {"coder"}


def test_work_is_handed_over_again_and_its_review_opened_anew() -> None:
    restored = restore(point(CODER, PLANNED, cut(CODER, 20, 4, submitted=True), subtasks={"s1": "running"}))
    assert going_on(restored) == SubtaskProgress(round=1, coder="coder", coder_step=4)


def test_a_review_at_work() -> None:
    cuts = (PLANNED, cut(CODER, 20, 4, submitted=True), cut(REVIEWER, 30, 1))
    restored = restore(point(REVIEWER, *cuts, subtasks={"s1": "running"}))
    assert going_on(restored) == SubtaskProgress(
        round=1, coder="coder", coder_step=5, reviewer="reviewer", reviewer_step=2
    )
    assert restored.resumed == {"coder", "reviewer"}
    assert restored.subtasks[0].rounds == 1


def test_a_verdict_is_handed_over_again() -> None:
    cuts = (PLANNED, cut(CODER, 20, 4, submitted=True), cut(REVIEWER, 30, 1, submitted=True))
    restored = restore(point(REVIEWER, *cuts, subtasks={"s1": "running"}))
    assert going_on(restored) == SubtaskProgress(
        round=1, coder="coder", coder_step=5, reviewer="reviewer", reviewer_step=1
    )
    assert restored.resumed == {"coder"}


def test_a_coder_at_work_after_a_review() -> None:
    cuts = (PLANNED, cut(CODER, 40, 6), cut(REVIEWER, 30, 1, submitted=True))
    restored = restore(point(CODER, *cuts, subtasks={"s1": "running"}, conflicts={"coder": 2}))
    assert going_on(restored) == SubtaskProgress(round=2, coder="coder", coder_step=7, conflicts=2)


def test_the_second_review() -> None:
    cuts = (
        PLANNED,
        cut(CODER, 40, 6, submitted=True),
        cut(REVIEWER, 30, 1, submitted=True),
        cut(SECOND, 50, 0),
    )
    restored = restore(point(SECOND, *cuts, subtasks={"s1": "running"}))
    assert going_on(restored) == SubtaskProgress(
        round=2, coder="coder", coder_step=7, reviewer="reviewer-2", reviewer_step=1
    )


def test_done_subtasks_stay_done() -> None:
    cuts = (PLANNED, cut(CODER, 20, 4, submitted=True), cut(REVIEWER, 30, 1, submitted=True), cut(OTHER, 50, 2))
    restored = restore(point(OTHER, *cuts, subtasks={"s1": "completed", "s2": "running"}))
    assert restored.done == ("s1",)
    assert list(restored.going_on) == ["s2"]
    assert restored.resumed == {"other"}
    names = {each.id: f"{each.id}'" for each in restored.kept}
    assert set(names) == {"planner", "coder", "reviewer", "other"}
    progress = restored.progress(names, 3, "user")
    assert (progress.done, progress.subtasks["s2"].coder, progress.paused_for) == (["s1"], "other'", "user")


def test_two_at_once_go_on_each_from_its_own_last_checkpoint() -> None:
    cuts = (PLANNED, cut(CODER, 20, 4), cut(OTHER, 30, 2))
    restored = restore(point(OTHER, *cuts, subtasks={"s1": "running", "s2": "running"}))
    assert {id_: one.coder_step for id_, one in restored.going_on.items()} == {"s1": 5, "s2": 3}


def test_a_thread_without_a_checkpoint_of_its_own_is_opened_anew() -> None:
    restored = restore(
        point(
            CODER,
            PLANNED,
            cut(CODER, 20, 4),
            conversations=[PLANNER, CODER, OTHER],
            history=History(
                revisions=[1], subtasks=[PastSubtask(revision=1, id="s1"), PastSubtask(revision=1, id="s2")]
            ),
        )
    )
    assert list(restored.going_on) == ["s1"]
    assert [thread.id for thread in restored.dropped] == ["other"]
    assert [one.state for one in restored.subtasks] == ["running", "pending"]


def test_a_subtask_given_up_while_another_was_at_work_tells_again_what_became_of_it() -> None:
    cuts = (PLANNED, cut(CODER, 20, 4, submitted=True), cut(SECOND, 30, 1, submitted=True), cut(OTHER, 50, 2))
    restored = restore(point(OTHER, *cuts, subtasks={"s1": "failed", "s2": "running"}))
    assert restored.going_on["s1"] == SubtaskProgress(
        round=2, coder="coder", coder_step=5, reviewer="reviewer-2", reviewer_step=1
    )
    assert restored.going_on["s2"].coder_step == 3
    assert [one.state for one in restored.subtasks] == ["running", "running"]


def test_a_copy_that_has_not_moved_is_cut_where_it_was_copied() -> None:
    origins = (cut(CODER, 1, 4, submitted=True), cut(REVIEWER, 2, 1))
    copies = [
        PLANNER,
        replace(CODER, origin=origins[0].model_dump(mode="json")),
        replace(REVIEWER, origin=origins[1].model_dump(mode="json")),
        OTHER,
    ]
    restored = restore(
        point(
            OTHER,
            conversations=copies,
            own={"planner": PLANNED, "other": cut(OTHER, 3, 2)},
            history=History(
                revisions=[1], subtasks=[PastSubtask(revision=1, id="s1"), PastSubtask(revision=1, id="s2")]
            ),
        )
    )
    assert restored.going_on["s1"] == SubtaskProgress(
        round=1, coder="coder", coder_step=5, reviewer="reviewer", reviewer_step=2
    )


def test_what_was_copied_comes_before_what_was_done_since() -> None:
    """A fork's own log begins at 1: the numbers of the log it was copied from say nothing there."""
    copies = [
        replace(CODER, origin=cut(CODER, 1, 4, submitted=True).model_dump(mode="json")),
        replace(REVIEWER, origin=cut(REVIEWER, 2, 1).model_dump(mode="json")),
    ]
    history = History(revisions=[1], subtasks=[PastSubtask(revision=1, id="s1")])
    moved = cut(REVIEWER, 9, 2, submitted=True)
    restored = restore(point(REVIEWER, conversations=copies, own={"reviewer": moved}, history=history))
    assert going_on(restored).reviewer_step == 2
    coder_moved = cut(CODER, 8, 5)
    restored = restore(point(CODER, conversations=copies, own={"coder": coder_moved}, history=history))
    assert going_on(restored) == SubtaskProgress(round=2, coder="coder", coder_step=6)


def test_a_fork_may_take_numbers_that_other_branches_have_used() -> None:
    whole = point(CODER, PLANNED, cut(CODER, 20, 4), subtasks={"s1": "running"}, taken={1, 2, 5}, last_revision=6)
    assert restore(whole).last_revision == 6
    assert restore(whole.alone()).last_revision == 1
