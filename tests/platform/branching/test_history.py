"""What is in force at a point of the event log."""

from typing import Any

from journeyman.platform.branching.history import History, Told, fold


def told(type_: str, subtask_id: str | None = None, **data: Any) -> Told:
    return Told(type_, subtask_id, data)


def states(history: History) -> list[tuple[int, str, str]]:
    return [(one.revision, one.id, one.state) for one in history.subtasks]


BEGINNING = [
    told("plan.proposed", revision=1),
    told("subtask.started", "s1", plan_revision=1),
    told("subtask.completed", "s1", rounds=2, snapshot="one"),
    told("subtask.started", "s2", plan_revision=1),
]


def test_nothing_happened() -> None:
    assert fold([]) == History()


def test_subtasks_as_their_events_tell() -> None:
    history = fold(BEGINNING)
    assert history.revisions == [1]
    assert states(history) == [(1, "s1", "completed"), (1, "s2", "running")]
    found = history.subtask(1, "s1")
    assert found is not None
    assert (found.rounds, found.snapshot) == (2, "one")


def test_the_same_id_in_the_next_plan_is_another_subtask() -> None:
    history = fold(
        [
            *BEGINNING,
            told("subtask.failed", "s2", rounds=3),
            told("plan.revised", revision=2),
            told("subtask.started", "s2", plan_revision=2),
            told("subtask.completed", "s2", rounds=1),
        ]
    )
    assert states(history) == [(1, "s1", "completed"), (1, "s2", "failed"), (2, "s2", "completed")]


def test_a_plan_counts_as_another_try_only_after_a_failure() -> None:
    assert fold(BEGINNING).plans == 1
    failed = [*BEGINNING, told("subtask.failed", "s2")]
    assert (fold(failed).plans, fold(failed).given_up) == (1, True)
    again = fold([*failed, told("plan.revised", revision=2)])
    assert (again.plans, again.given_up) == (2, False)
    not_accepted = [*BEGINNING, told("acceptance.failed"), told("acceptance.failed"), told("plan.revised", revision=2)]
    assert fold(not_accepted).plans == 2
    wanted_by_a_person = [*BEGINNING, told("plan.revised", revision=2)]
    assert fold(wanted_by_a_person).plans == 1


def test_messages_are_where_the_first_agent_has_them() -> None:
    history = fold(
        [
            told("message.received", message_number=1),
            told("message.received", message_number=2),
            told("message.delivered", message_number=1),
            told("message.acted_on", message_number=1),
            told("message.delivered", message_number=1),
            told("message.delivered", message_number=2),
            told("message.received", message_number=3),
        ]
    )
    assert history.messages == {1: "acted_on", 2: "delivered", 3: "received"}


def test_a_branch_begins_with_the_history_it_carries() -> None:
    before = fold(BEGINNING)
    rewound = told("task.rewound", history=before.model_dump(mode="json"))
    later = fold(
        [
            told("plan.proposed", revision=1),
            told("plan.revised", revision=2),
            told("note.written", number=1),
            rewound,
            told("subtask.completed", "s2", rounds=1),
        ]
    )
    assert later.revisions == [1]
    assert later.notes == []
    assert states(later) == [(1, "s1", "completed"), (1, "s2", "completed")]
    assert before == fold(BEGINNING)
