import random

import pytest

from journeyman.agents.loops import Alarm, ObservedCall, Thresholds, Window, observe, spelled


def run(steps, thresholds=None) -> list[Alarm]:
    window, alarms = Window(), []
    for step in steps:
        # What is kept must survive a continue-as-new.
        window, alarm = observe(Window.model_validate_json(window.model_dump_json()), step, thresholds)
        if alarm is not None:
            alarms.append(alarm)
    return alarms


def call(name="a", result="r", workspace="w0", tokens=0, *, slow=False):
    return ObservedCall(tool="shell", arguments=name, result=result, workspace=workspace, new_tokens=tokens, slow=slow)


def trips(steps):
    return [alarm.kind for alarm in run(steps) if alarm.level == "trip"]


def kinds(alarms):
    return [(alarm.kind, alarm.level) for alarm in alarms]


def test_the_same_call_with_the_same_result_is_noticed():
    alarms = run([call()] * 6)
    assert kinds(alarms) == [("repeat", "nudge"), ("repeat", "trip")]
    assert "6 times in a row" in alarms[1].message


@pytest.mark.parametrize("varied", ["result", "workspace", "name"])
def test_a_repetition_that_brings_something_new_is_none(varied):
    assert run([call(**{varied: f"v{number}"}) for number in range(20)]) == []


def test_tests_run_again_after_every_edit_are_no_loop():
    steps = []
    for number in range(25):
        steps += [call("edit", f"e{number}", f"w{number}"), call("test", "failed", f"w{number}")]
    assert run(steps) == []


@pytest.mark.parametrize("period", [2, 3, 4, 5, 6])
def test_going_round_in_circles_is_noticed(period):
    alarms = run([call(f"c{number % period}") for number in range(5 * period)])
    assert kinds(alarms) == [("cycle", "nudge"), ("cycle", "trip")]
    assert f"same {period} calls" in alarms[0].message


def test_edit_and_undo_is_a_circle_although_the_workspace_changes():
    steps = [call("edit", "ok", "w1"), call("undo", "ok", "w0")] * 5
    assert kinds(run(steps))[-1] == ("cycle", "trip")


def test_a_coder_that_changes_nothing_for_long_is_noticed():
    alarms = run([call(f"c{number}") for number in range(61)])
    assert kinds(alarms) == [("idle", "nudge"), ("idle", "trip")]


def test_reading_in_a_fork_may_take_long():
    assert run([call(f"c{number}", workspace=None) for number in range(200)]) == []


def test_a_change_starts_the_count_again():
    steps = [call(f"c{number}", workspace=f"w{number // 25}") for number in range(300)]
    assert run(steps) == []


def test_a_token_rate_far_above_its_own_past_is_noticed():
    calm = [call(f"c{number}", workspace=f"w{number}", tokens=3000) for number in range(30)]
    wild = [call(f"d{number}", workspace=f"x{number}", tokens=90_000) for number in range(5)]
    assert run(calm) == []
    assert kinds(run(calm + wild))[0] == ("token_spike", "trip")
    assert run(wild) == []  # there is no past to compare with yet
    cheap = [call(f"e{number}", workspace=f"y{number}", tokens=15_000) for number in range(5)]
    tiny = [call(f"f{number}", workspace=f"z{number}", tokens=100) for number in range(30)]
    assert run(tiny + cheap) == []


def test_thresholds_can_be_set():
    assert kinds(run([call()] * 2, Thresholds(repeat_nudge=2, repeat_trip=2))) == [("repeat", "trip")]


def test_the_window_is_bounded():
    rng = random.Random(1)
    window = Window()
    for number in range(2000):
        step = call(f"c{rng.randrange(50)}" * 50, f"r{number}" * 50, f"w{number}" * 50, tokens=rng.randrange(10_000))
        window, _ = observe(window, step)
    assert len(window.model_dump_json()) < 4000


def test_random_work_that_gets_somewhere_never_trips():
    rng = random.Random(2)
    for _ in range(50):
        steps = [
            call(
                rng.choice("abcdefgh"),
                f"r{rng.randrange(30)}",
                f"w{number // rng.randrange(1, 9)}",
                rng.randrange(9000),
            )
            for number in range(200)
        ]
        assert [alarm for alarm in run(steps) if alarm.level == "trip"] == []


def test_polling_a_background_command_that_gets_on_is_no_loop_and_not_idle():
    polls = [call("tail -1 build.log", f"{number} % done") for number in range(200)]
    assert run(polls) == []
    alternating = []
    for number in range(100):
        alternating += [call("sleep 5", "exit code 0"), call("tail -1 build.log", f"{number} % done")]
    assert trips(alternating[:20]) == []


def test_waiting_for_a_silent_command_is_borne_longer_but_not_for_ever():
    silent = [call("sleep 60; tail -1 build.log", "linking", slow=True) for _ in range(30)]
    assert trips(silent[:29]) == []
    assert "repeat" in trips(silent)
    pairs = [call("sleep 60", "", slow=True), call("tail -1 build.log", "linking")] * 25
    assert trips(pairs[:28]) == []
    assert "cycle" in trips(pairs)
    hasty = [call("tail -1 build.log", "linking")] * 6
    assert trips(hasty) == ["repeat"]


def test_two_calls_in_turn_with_changing_results_are_no_loop():
    steps = []
    for number in range(60):
        steps += [call("edit", "ok", f"w{number}"), call("pytest", f"{60 - number} failed", f"w{number}")]
    assert run(steps) == []


def test_edits_that_take_each_other_back_are_noticed_however_they_are_spelt():
    steps = []
    for number in range(5):
        steps += [
            call(f"write {number}", "ok", "w1"),
            call(f"look {number}", f"{number}", "w1"),
            call(f"sed {number}", f"{number} replaced", "w0"),
        ]
    # The first edit starts from a state that was not seen before it.
    alarms = run([call("begin", "", "w0"), *steps])
    assert kinds(alarms)[:3] == [("undo", "nudge"), ("undo", "nudge"), ("undo", "trip")]
    assert "take each other back" in alarms[-1].message


def test_trying_one_thing_after_another_from_the_same_state_is_no_undoing():
    steps = [call("begin", "", "w0")]
    for number in range(10):
        steps += [call(f"try {number}", "ok", f"try-{number}"), call("pytest", f"f{number}", f"try-{number}"),
                  call("git checkout .", "ok", "w0")]  # fmt: skip
    assert run(steps) == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"command": "pytest  -q"}, {"command": " pytest -q ; "}),
        ({"command": "ls", "timeout_s": 10}, {"command": "ls"}),
        ({"path": "./src/a.py"}, {"path": "src/a.py"}),
        ({"path": "src//b/../a.py", "start_line": 1}, {"path": "src/a.py", "start_line": 1}),
    ],
)
def test_another_spelling_is_the_same_call(one, other):
    assert spelled(one) == spelled(other)


def test_other_arguments_are_another_call():
    calls = [{"command": "ls"}, {"command": "ls -a"}, {"path": "a", "old": "x ", "new": "y"},
             {"path": "a", "old": "x", "new": "y"}]  # fmt: skip
    assert len({spelled(each) for each in calls}) == 4
