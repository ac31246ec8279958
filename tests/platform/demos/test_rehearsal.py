"""Plays every bundled demo from end to end in plain folders: agents' prompts, replay engine, real commands.

What is proven: scripted edits apply, commands print what the scripts expect, the work fails its acceptance before and
passes after, every scripted thread is used, and no call is refused.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from journeyman.agents import arguments, context
from journeyman.agents.context import DoneSubtask, Environment, TaskBrief
from journeyman.agents.loops import ObservedCall, Window, observe
from journeyman.agents.output import cut_output
from journeyman.agents.plans import Plan, ready_subtasks
from journeyman.agents.review import Next, after_review
from journeyman.agents.tools import ParsedCall, parse_call, tool_schemas
from journeyman.platform.demos import Demo, catalog
from journeyman.platform.replay.catalog import ReplayCatalog
from journeyman.platform.replay.player import ReplayPlayer


@dataclass
class Place:
    """Two folders that stand for /workspace and /artifacts."""

    root: Path
    variables: dict[str, str]

    def __post_init__(self) -> None:
        for name in ("workspace", "artifacts"):
            (self.root / name).mkdir(parents=True, exist_ok=True)

    def fork(self, name: str) -> "Place":
        copy = self.root.parent / name
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.root, copy)
        return Place(copy, self.variables)

    def here(self, text: str) -> str:
        for name in ("workspace", "artifacts"):
            text = text.replace(f"/{name}", f"{self.root}/{name}")
        return text

    def path(self, text: str) -> Path:
        inside = Path("/workspace") / text
        assert inside.parts[1] in {"workspace", "artifacts"}, text
        return self.root / inside.relative_to("/")

    def run(self, command: str) -> tuple[int, bytes]:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-c", self.here(command)],
            cwd=self.root / "workspace",
            env={"PATH": path, "HOME": str(self.root), "TMPDIR": str(self.root), "LANG": "C.UTF-8", **self.variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=60,
            check=False,
        )
        return done.returncode, done.stdout.replace(str(self.root).encode(), b"")


def perform(place: Place, call: ParsedCall) -> str:
    match call.arguments:
        case arguments.Shell(command=command):
            code, output = place.run(command)
            return f"{cut_output(output, 'out').text}\nexit code {code}"
        case arguments.ReadFile(path=path, start_line=first, end_line=last):
            lines = place.path(path).read_text().splitlines()
            return "\n".join(lines[(first or 1) - 1 : last])
        case arguments.WriteFile(path=path, content=content):
            place.path(path).parent.mkdir(parents=True, exist_ok=True)
            place.path(path).write_text(content)
            return "written"
        case arguments.EditFile(path=path, old=old, new=new):
            text = place.path(path).read_text()
            assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times in {path}:\n{text}"
            place.path(path).write_text(text.replace(old, new))
            return "edited"
        case arguments.ListFiles(path=path):
            folder = place.path(path or ".")
            return "\n".join(sorted(str(entry.relative_to(folder)) for entry in folder.rglob("*")))
        case arguments.Search(pattern=pattern, path=path):
            return place.run(f"grep -rnE -e '{pattern}' {path or '.'}")[1].decode()
        case _:
            return "ok"


@dataclass
class Rehearsal:
    demo: Demo
    place: Place
    brief: TaskBrief
    player: ReplayPlayer = field(
        default_factory=lambda: ReplayPlayer(ReplayCatalog([Path(catalog()[0].folder.parent)]))
    )
    threads: set[tuple] = field(default_factory=set)
    turns: int = 0
    setbacks: int = 0
    remarks: list[str] = field(default_factory=list)

    def act(self, role: str, place: Place, messages: list, played: tuple) -> ParsedCall:
        """Let the role answer until it hands over."""
        self.threads.add(played)
        window = Window()
        while True:
            answer = self.player.answer(
                {"messages": [context.system_message(role), *messages], "tools": tool_schemas(role)}
            )
            calls = [{"id": call["id"], **call["function"]} for call in answer.tool_calls]
            assert calls, f"{played}: a turn calls no tool: {answer.text}"
            messages.append(context.assistant_message(answer.text, calls, answer.turn.reasoning))
            self.turns += 1
            for call in calls:
                parsed = parse_call(role, call["name"], call["arguments"])
                assert isinstance(parsed, ParsedCall), parsed
                if parsed.terminal:
                    assert call is calls[-1]
                    messages.append(context.tool_message(call["id"], "Submitted."))
                    return parsed
                result = perform(place, parsed)
                self.setbacks += role == "coder" and ("FAILED (" in result or "Error: " in result)
                messages.append(context.tool_message(call["id"], result))
                window, alarm = observe(window, ObservedCall(tool=parsed.name, arguments=parsed.digest, result=result))
                assert alarm is None, alarm

    def play(self) -> Plan:
        fork = self.place.fork("planner")
        opening = [context.planner_opening(self.brief)]
        plan = self.act("planner", fork, opening, ("planner", None, None)).arguments
        assert isinstance(plan, Plan)
        done: list[DoneSubtask] = []
        while ready := ready_subtasks(plan, [item.id for item in done]):
            subtask = ready[0]
            assert subtask.acceptance
            assert not self.passes(self.place.fork("before"), subtask.acceptance), (
                f"{subtask.id} is done before it began"
            )
            before = self.place.fork("base")
            coder = [context.coder_opening(self.brief, subtask, done=done)]
            former: tuple = ()
            for number in range(1, 10):
                work = self.act("coder", self.place, coder, ("coder", subtask.id, None)).arguments
                opening = context.reviewer_opening(
                    self.brief,
                    subtask,
                    round_number=number,
                    summary=work.summary,
                    diff=diff(before, self.place),
                    former_findings=former,
                )
                fork = self.place.fork("review")
                review = self.act("reviewer", fork, [opening], ("reviewer", subtask.id, number)).arguments
                decision = after_review(review, round_number=number)
                if decision.next == Next.ACCEPT:
                    break
                assert decision.next == Next.REVISE
                former = tuple(review.findings)
                self.remarks += [finding.message for finding in former]
                coder.append(context.findings_note(number, review.findings))
            assert self.passes(self.place.fork("after"), subtask.acceptance)
            done.append(DoneSubtask(subtask.id, subtask.title, work.summary))
        assert [item.id for item in done] == [subtask.id for subtask in plan.subtasks]
        return plan

    def passes(self, place: Place, commands) -> bool:
        return all(place.run(command)[0] == 0 for command in commands)


def diff(before: Place, after: Place) -> str:
    done = subprocess.run(
        ["diff", "-ruN", f"{before.root}/workspace", f"{after.root}/workspace"], capture_output=True, check=False
    )
    return done.stdout.decode()


def rehearsal(demo: Demo, folder: Path) -> Rehearsal:
    task = demo.task
    place = Place(folder / "place", task["environment"].get("env", {}))
    for name, path in demo.files():
        place.path(name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place.path(name))
    brief = TaskBrief(task["instruction"], Environment(), tuple(task["acceptance"]))
    return Rehearsal(demo, place, brief)


@pytest.mark.parametrize("demo", catalog(), ids=lambda demo: demo.slug)
def test_a_demo_plays_to_a_verified_end(demo, tmp_path):
    played = rehearsal(demo, tmp_path)
    commands = demo.task["acceptance"]
    assert not any(
        played.place.fork(f"initial-{number}").run(command)[0] == 0 for number, command in enumerate(commands)
    )
    plan = played.play()
    for number, command in enumerate([*commands, *plan.acceptance]):
        code, output = played.place.fork(f"final-{number}").run(command)
        assert code == 0, f"{command}\n{output.decode()}"
    scripted = {(t["role"], t.get("subtask"), t.get("round")) for t in demo.script["threads"]}
    assert played.threads == scripted
    assert played.turns == sum(len(thread["turns"]) for thread in demo.script["threads"])
    # The parts that make it worth watching: something went wrong and was noticed, and a review found something.
    assert played.setbacks
    assert played.remarks
    left = [str(path) for path in played.place.root.rglob("*") if path.suffix == ".pyc"]
    assert left == []
