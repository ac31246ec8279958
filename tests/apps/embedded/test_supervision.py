"""How processes are started, watched and stopped, with stand-ins for the real ones."""

import os
from pathlib import Path

import pytest

from journeyman.apps.embedded.child import Child
from journeyman.apps.embedded.errors import StackError
from journeyman.apps.embedded.logs import LogFile
from journeyman.apps.embedded.ports import choose_port
from journeyman.apps.embedded.specs import ProcessSpec, Spec, Status, StepSpec
from journeyman.apps.embedded.stack import EmbeddedStack
from journeyman.platform.kit.settings import Settings
from support.stack import kill_and_wait, part_of
from support.stand_ins import grandchildren, journal_lines, running, stand_in


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = tmp_path / "journal"
    path.touch()
    return path


def stack_of(tmp_path: Path, *specs: Spec) -> EmbeddedStack:
    return EmbeddedStack(tmp_path / "data", parts=(), further=specs, settings=Settings(data_dir=tmp_path / "data"))


async def test_starts_after_what_it_depends_on_and_stops_before(tmp_path: Path, journal: Path) -> None:
    step_ran: list[int] = []

    async def step() -> None:
        step_ran.append(len(journal_lines(journal, "started")))

    stack = stack_of(
        tmp_path,
        stand_in("top", journal, depends_on=["middle"]),
        StepSpec("step", step, depends_on=["bottom"]),
        stand_in("middle", journal, depends_on=["bottom", "step"]),
        stand_in("bottom", journal),
    )
    async with stack:
        assert stack.status == "ready"
        assert journal_lines(journal, "started") == ["bottom", "middle", "top"]
        assert step_ran == [1]
        pids = [part.pid for part in stack.parts if part.pid]
        assert len(pids) == 3
    assert journal_lines(journal, "stopped") == ["top", "middle", "bottom"]
    assert running([*pids, *grandchildren(journal)]) == []
    assert stack.directory.holder() is None


async def test_what_crashes_is_started_again(tmp_path: Path, journal: Path) -> None:
    async with stack_of(tmp_path, stand_in("one", journal), stand_in("two", journal)) as stack:
        first, other = part_of(stack, "one").pid, part_of(stack, "two").pid
        orphan = grandchildren(journal)
        await kill_and_wait(stack, "one")
        part = part_of(stack, "one")
        assert part.pid != first
        assert part.restarts == 1
        assert part_of(stack, "two").pid == other
        assert stack.status == "ready"
        assert len(running(orphan)) == 1, "what the killed process had started went with it"
        for count in range(2, 4):
            await kill_and_wait(stack, "one")
            assert part.restarts == count


async def test_a_part_that_cannot_start_fails_the_start_with_its_last_words(tmp_path: Path, journal: Path) -> None:
    stack = stack_of(tmp_path, stand_in("good", journal), stand_in("bad", journal, mode="crash"))
    with pytest.raises(StackError, match="flux capacitor") as caught:
        await stack.start()
    assert caught.value.details["part"] == "bad"
    assert "exit code 1" in caught.value.message
    assert running(grandchildren(journal)) == []
    assert stack.directory.holder() is None
    state = stack.directory.read_state()
    assert state is not None
    assert state["status"] == "failed"
    assert "flux capacitor" in state["error"]


async def test_a_part_that_never_answers_fails_the_start(tmp_path: Path, journal: Path) -> None:
    stack = stack_of(tmp_path, stand_in("deaf", journal, mode="deaf", start_timeout_s=0.3))
    with pytest.raises(StackError, match="not ready after"):
        await stack.start()
    assert running(grandchildren(journal)) == []


async def test_a_step_that_fails_fails_the_start(tmp_path: Path, journal: Path) -> None:
    async def step() -> None:
        raise RuntimeError("revision 0007 is not known here")

    stack = stack_of(tmp_path, stand_in("below", journal), StepSpec("migrate", step, depends_on=["below"]))
    with pytest.raises(StackError, match="migrate failed: revision 0007"):
        await stack.start()
    assert journal_lines(journal, "stopped") == ["below"]


async def test_what_does_not_stop_is_killed(tmp_path: Path, journal: Path) -> None:
    async with stack_of(tmp_path, stand_in("rock", journal, mode="stubborn", stop_timeout_s=0.3)) as stack:
        pid = part_of(stack, "rock").pid
        assert pid is not None
    assert running([pid, *grandchildren(journal)]) == []
    assert "was killed" in part_of(stack, "rock").detail


async def test_somebody_else_answering_on_the_port_is_not_taken_for_the_part(tmp_path: Path, journal: Path) -> None:
    port = choose_port(set())
    async with stack_of(tmp_path, stand_in("first", journal, port=port)) as stack:
        intruder = stand_in("second", journal, port=port)
        log = LogFile(stack.directory.logs / "second.log")
        child = Child(intruder, log, tmp_path, lambda: None)
        await child.run()
        assert child.part.status is Status.FAILED
        assert f"port {port} is taken" in child.part.detail


async def test_secrets_are_in_no_argument(tmp_path: Path, journal: Path) -> None:
    async with stack_of(tmp_path, stand_in("one", journal)) as stack:
        secrets = stack.directory.secrets().values()
        for name in ("postgres", "temporal", "objects", "embeddings", "vectors"):
            assert stack._services is not None
            spec = stack._services.spec(name, stack.settings)
            assert isinstance(spec, ProcessSpec)
            assert not any(secret in argument for secret in secrets for argument in spec.argv)


async def test_the_environment_of_servers_has_none_of_ours(
    tmp_path: Path, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOURNEYMAN_MODEL_API_KEY", "sk-secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "aws-secret")
    async with stack_of(tmp_path, stand_in("one", journal)) as stack:
        for name in ("postgres", "temporal", "objects", "embeddings", "vectors"):
            assert stack._services is not None
            spec = stack._services.spec(name, stack.settings)
            assert isinstance(spec, ProcessSpec)
            assert not {"sk-secret", "aws-secret"} & set(spec.env.values())


def test_logs_are_bounded(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "a.log", limit=1000)
    with log.open() as file:
        file.write(b"x" * 900 + b"\n")
        assert not log.rotate()
        file.write(b"y" * 900 + b"\n")
        assert log.rotate()
        file.write(b"after\n")
    assert log.path.read_bytes() == b"after\n"
    assert (tmp_path / "a.log.1").stat().st_size == 1802
    assert log.tail() == "after"


async def test_a_ctrl_c_on_the_terminal_reaches_the_supervisor_alone(tmp_path: Path, journal: Path) -> None:
    async with stack_of(tmp_path, stand_in("one", journal)) as stack:
        pid = part_of(stack, "one").pid
        assert pid is not None
        assert os.getpgid(pid) == os.getsid(pid) == pid
