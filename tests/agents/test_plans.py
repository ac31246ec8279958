import random

import pytest

from journeyman.agents.plans import (
    MAX_SUBTASKS,
    Plan,
    Subtask,
    ready_subtasks,
    validate_plan,
)


def plan(graph: dict[str, list[str]], **changes) -> Plan:
    return Plan(
        subtasks=[
            Subtask(id=name, title=name, instructions="do", depends_on=needs, **changes)
            for name, needs in graph.items()
        ]
    )


def ids(subtasks) -> list[str]:
    return [subtask.id for subtask in subtasks]


DIAMOND = {"top": [], "left": ["top"], "right": ["top"], "bottom": ["left", "right"], "alone": []}


def test_a_good_plan_has_no_problems():
    assert validate_plan(plan(DIAMOND)) == []


@pytest.mark.parametrize(
    ("graph", "said"),
    [
        ({}, "at least one subtask"),
        ({"A": []}, "must be 1 to 40 of a-z"),
        ({"": []}, "must be 1 to 40"),
        ({"x" * 41: []}, "must be 1 to 40"),
        ({"a\n": []}, "must be 1 to 40"),
        ({"a": ["a"]}, "cannot depend on itself"),
        ({"a": ["nowhere"]}, "there is no subtask 'nowhere'"),
        ({"a": ["b"], "b": ["a"]}, "a → b → a depend on each other in a circle"),
        ({"x": [], "y": ["x", "c"], "a": ["c"], "b": ["a"], "c": ["b"]}, "in a circle"),
        ({f"s{number}": [] for number in range(MAX_SUBTASKS + 1)}, "more than the 30 allowed"),
    ],
)
def test_plans_that_cannot_be_carried_out(graph, said):
    assert any(said in problem.message for problem in validate_plan(plan(graph)))


def test_ids_used_twice_and_empty_texts():
    both = plan({"a": []}).subtasks * 2
    assert any("used twice" in problem.message for problem in validate_plan(Plan(subtasks=both)))
    empty = Subtask(id="a", title=" ", instructions="\n", acceptance=["true", " "])
    problems = validate_plan(Plan(subtasks=[empty], acceptance=[""]))
    assert [problem.field for problem in problems] == [
        "subtasks[0].title",
        "subtasks[0].instructions",
        "subtasks[0].acceptance[1]",
        "acceptance[0]",
    ]


def test_the_most_that_is_allowed():
    assert validate_plan(plan({f"s{number}": [] for number in range(MAX_SUBTASKS)})) == []


def test_what_is_ready_follows_what_is_done():
    work = plan(DIAMOND)
    assert ids(ready_subtasks(work, set(), set())) == ["top", "alone"]
    assert ids(ready_subtasks(work, {"top"}, {"alone"})) == ["left", "right"]
    assert ids(ready_subtasks(work, {"top", "left"}, {"right"})) == ["alone"]
    assert ids(ready_subtasks(work, set(DIAMOND))) == []


def test_random_graphs_run_to_their_end_exactly_when_they_are_valid():
    rng = random.Random(7)
    outcomes = set()
    for _ in range(400):
        names = [f"s{number}" for number in range(rng.randrange(1, 12))]
        graph = {
            name: rng.sample([n for n in names if n != name], min(len(names) - 1, rng.randrange(3))) for name in names
        }
        work = plan(graph)
        done: list[str] = []
        while ready := ready_subtasks(work, done):
            done.append(rng.choice(ready).id)
        valid = validate_plan(work) == []
        outcomes.add(valid)
        assert valid == (sorted(done) == sorted(names))
    assert outcomes == {True, False}
