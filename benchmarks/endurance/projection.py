"""What two runs of the same script must have in common, whatever was killed in one of them.

An event log is projected to a list of entries. Kept, in order: what each agent said and called, what came of it (text,
exit code), every checkpoint with its snapshot, plans, subtasks, reviews, acceptance, artifacts, states, the end. Left out
are times, durations, ids, the beginnings and failures of model calls, leases of sandboxes, and what is marked as recovery:

* ``task.paused`` and ``task.resumed`` for ``model_unavailable``;
* ``sandbox.replaced``, and the note of it in the result that follows;
* a *void* step: one that a sandbox took with it. A call of it is marked ``sandbox_lost`` or its checkpoint ``effects_lost``,
  the agent was told so and did it again. The step that did it again takes its number.
* "it can be recalled once the memory index answers again": memory was away, and said so.

Nothing else may differ. An event of a type that is named nowhere here is an error, not noise.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from journeyman.agents.context import sandbox_replaced_note
from journeyman.platform.sandboxes.errors import LOST_WHILE_RUNNING

Event = dict[str, Any]

_IDS: Final = re.compile(r"\b([a-z]{2,8})_[0-9a-f]{32}\b")
_OUTPUT: Final = re.compile(r"\bout_\d+_(\d+)\b")
_NOTE: Final = str(sandbox_replaced_note()["content"])
_LISTED: Final = str(sandbox_replaced_note([""])["content"]).removeprefix(_NOTE).removesuffix("\n- ")
_REPLACED: Final = re.compile(re.escape(_NOTE) + f"(?:{re.escape(_LISTED)}(?:\\n- [^\\n]*)+)?\\n\\n")
"""What a result begins with after a loss, with or without the background commands that went with the sandbox."""
_DEGRADED_MEMORY: Final = "; it can be recalled once the memory index answers again."

_CUT: Final = "\n[… "
"""Begins the line that stands for what an event leaves out of a text; see ``events.log.storable``."""
_END: Final = 5000

_LEFT_OUT: Final = frozenset(
    {"model.started", "model.failed", "sandbox.leased", "sandbox.replaced", "sandbox.released"}
)
_OF_THE_TASK: Final[dict[str, tuple[str, ...]]] = {
    "task.created": (),
    "task.state_changed": ("from", "to"),
    "task.completed": ("state", "verified"),
    "task.failed": ("state", "failure"),
    "task.errored": ("state", "failure"),
    "task.cancelled": ("state",),
    "environment.checked": ("tools", "files", "bytes"),
    "environment.failed": ("problems",),
    "plan.proposed": ("revision", "subtasks", "acceptance"),
    "plan.revised": ("revision", "subtasks", "acceptance"),
    "subtask.started": ("subtask_id", "plan_revision"),
    "subtask.completed": ("subtask_id", "rounds", "snapshot"),
    "subtask.failed": ("subtask_id", "rounds", "snapshot", "problem"),
    "subtask.merged": ("subtask_id", "snapshot"),
    "subtask.conflicted": ("subtask_id", "paths"),
    "review.approved": ("findings",),
    "review.changes_requested": ("findings",),
    "acceptance.passed": ("command", "exit_code", "by", "output", "snapshot"),
    "acceptance.failed": ("command", "exit_code", "by", "output", "snapshot"),
    "artifact.created": ("kind", "name", "media_type"),
    "memory.written": ("kind", "text"),
    "note.written": ("text",),
    "message.received": ("text", "mode"),
    "message.delivered": (),
    "message.acted_on": (),
    "budget.warned": ("limit", "of"),
    "budget.changed": ("budget",),
    "budget.exhausted": (),
    "circuit_breaker.tripped": ("kind", "role"),
    "plan.edited": ("revision", "subtasks", "acceptance"),
    "plan.approved": ("revision",),
    "plan.rejected": ("revision",),
    "approval.requested": ("kind",),
    "approval.escalated": ("kind",),
    "approval.decided": ("decision",),
    "task.rewound": (),
    "task.forked": (),
}
_RESULT: Final = (
    "tool",
    "ok",
    "exit_code",
    "signal",
    "timed_out",
    "oom_killed",
    "output_bytes",
    "running",
    "error",
    "occurrences",
    "matches",
    "bytes",
    "lines",
    "entries",
)


class LogBroken(AssertionError):
    """The log contradicts itself: a gap, a doubled call, a result without a call."""


@dataclass(frozen=True)
class Entry:
    """``stream``: the thread, as role, subtask and number of the conversation among those; ``task`` for the rest."""

    stream: str
    step: int | None
    kind: str
    content: Any


@dataclass
class _Step:
    number: int
    """As the platform counts."""
    shown: int
    """Without the void ones."""
    entries: list[Entry] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    void: bool = False
    checkpointed: bool = False


@dataclass
class _Thread:
    name: str
    steps: list[_Step] = field(default_factory=list)
    void: int = 0
    disturbed_from: int | None = None
    """Shown step from which on the conversation holds words about a lost sandbox: prompts differ in length."""


@dataclass
class Projection:
    entries: list[Entry]
    recovery: Counter[str]
    """What was marked as recovery, by kind."""
    steps: dict[str, tuple[str, int] | None]
    """Step key → thread and shown number; None for a void step."""
    disturbed: dict[str, int]
    """Thread → first step whose prompt holds words about a loss."""

    def stream(self, name: str) -> list[Entry]:
        return [entry for entry in self.entries if entry.stream == name]

    @property
    def streams(self) -> list[str]:
        return list(dict.fromkeys(entry.stream for entry in self.entries))


def project(events: Sequence[Event]) -> Projection:
    """Raises :class:`LogBroken` when the log contradicts itself."""
    return _Projector().run(events)


class _Projector:
    def __init__(self) -> None:
        self._threads: dict[str, _Thread] = {}
        self._names: Counter[tuple[str, str | None]] = Counter()
        self._timeline: list[Entry | _Step] = []
        self._recovery: Counter[str] = Counter()

    def run(self, events: Sequence[Event]) -> Projection:
        for place, event in enumerate(events, 1):
            if event["seq"] != place:
                raise LogBroken(f"event {event['seq']} stands where {place} belongs")
            self._take(event)
        entries: list[Entry] = []
        for item in self._timeline:
            if isinstance(item, Entry):
                entries.append(item)
            elif not item.void:
                entries.extend(item.entries)
        steps: dict[str, tuple[str, int] | None] = {}
        for thread_id, thread in self._threads.items():
            for step in thread.steps:
                if sorted(step.calls) != sorted(step.results):
                    raise LogBroken(f"{thread.name} step {step.number}: calls {step.calls}, results {step.results}")
                steps[f"{thread_id}:{step.number}"] = None if step.void else (thread.name, step.shown)
        disturbed = {t.name: t.disturbed_from for t in self._threads.values() if t.disturbed_from is not None}
        return Projection(entries, self._recovery, steps, disturbed)

    def _take(self, event: Event) -> None:
        type_ = event["type"]
        data = event["data"]
        if type_ in _LEFT_OUT:
            if type_ in {"model.failed", "sandbox.replaced"}:
                self._recovery[type_] += 1
            if type_ == "model.started" and data.get("attempt", 1) > 1:
                self._recovery["model.started again"] += 1
        elif type_ in {"task.paused", "task.resumed"}:
            if data.get("reason") == "model_unavailable":
                self._recovery[type_] += 1
            else:
                self._timeline.append(Entry("task", None, type_, data.get("reason")))
        elif type_ == "memory.recalled":
            self._recovery["memory.recalled degraded"] += bool(data.get("degraded"))
            self._timeline.append(Entry("task", None, type_, None))
        elif type_ == "model.completed":
            self._begin(event)
        elif type_.startswith("agent.") or type_ in {"checkpoint.created", "sandbox.limit_hit"}:
            self._in_step(event)
        elif type_ in {"memory.written", "note.written"} and event["thread_id"] in self._threads:
            # By a call of the agent: done again with the rest of a step that a sandbox took with it.
            self._in_step(event)
        elif type_ in _OF_THE_TASK:
            content = {name: _plain(data.get(name)) for name in _OF_THE_TASK[type_]}
            self._timeline.append(Entry("task", None, type_, content))
        else:
            raise LogBroken(f"nobody has said what a {type_} means for the comparison")

    def _thread(self, event: Event) -> _Thread:
        thread = self._threads.get(event["thread_id"])
        if thread is None:
            key = (event["data"]["role"], event["subtask_id"])
            self._names[key] += 1
            thread = _Thread("/".join([key[0], *([key[1]] if key[1] else []), str(self._names[key])]))
            self._threads[event["thread_id"]] = thread
        return thread

    def _begin(self, event: Event) -> None:
        thread = self._thread(event)
        data = event["data"]
        if data["step"] != len(thread.steps):
            raise LogBroken(f"{thread.name}: step {data['step']} was answered where {len(thread.steps)} was due")
        step = _Step(data["step"], data["step"] - thread.void)
        completion = (data["usage"] or {}).get("completion_tokens")
        answer = {"model": data["model"], "finish_reason": data["finish_reason"], "completion_tokens": completion}
        step.entries.append(Entry(thread.name, step.shown, "model.completed", answer))
        thread.steps.append(step)
        self._timeline.append(step)

    def _in_step(self, event: Event) -> None:
        type_, data = event["type"], event["data"]
        thread = self._threads.get(event["thread_id"])
        if thread is None or not thread.steps:
            if type_ == "checkpoint.created" and event["thread_id"] is None:
                self._timeline.append(Entry("task", None, type_, data["snapshot"]))
                return
            raise LogBroken(f"a {type_} before any answer of its thread")
        step = thread.steps[-1]
        content: Any = None
        match type_:
            case "agent.tool_call":
                if data["call_id"] in step.calls:
                    raise LogBroken(f"{data['call_id']} was called twice")
                step.calls.append(data["call_id"])
                content = {"tool": data["tool"], "arguments": data["arguments"]}
            case "agent.tool_result":
                if data["call_id"] in step.results:
                    raise LogBroken(f"{data['call_id']} has two results")
                step.results.append(data["call_id"])
                content = self._result(thread, step, data)
            case "checkpoint.created":
                if step.checkpointed:
                    raise LogBroken(f"{thread.name} step {step.number} has two checkpoints")
                step.checkpointed = True
                if data.get("effects_lost"):
                    self._void(thread, step)
                content = {"snapshot": data["snapshot"], "plan_revision": data["plan_revision"]}
            case "sandbox.limit_hit":
                content = data["limit"]
            case _:
                content = data.get("text")
        step.entries.append(Entry(thread.name, step.shown, type_, content))

    def _result(self, thread: _Thread, step: _Step, data: dict[str, Any]) -> dict[str, Any]:
        text: str = data["text"]
        if told := _REPLACED.match(text):
            text = text[told.end() :]
            self._recovery["told of a replaced sandbox"] += 1
            self._disturb(thread, step.shown + 1)
        if data.get("error") == "sandbox_lost" or LOST_WHILE_RUNNING in text:
            self._void(thread, step)
        if data.get("reattached"):
            self._recovery["reattached"] += 1
        if text.endswith(_DEGRADED_MEMORY):
            text = text.removesuffix(_DEGRADED_MEMORY) + "."
            self._recovery["memory degraded"] += 1
            self._disturb(thread, step.shown + 1)
        return {"text": _plain(_ends(text)), **{name: data.get(name) for name in _RESULT}}

    def _void(self, thread: _Thread, step: _Step) -> None:
        if not step.void:
            step.void = True
            thread.void += 1
            self._recovery["void step"] += 1
        self._disturb(thread, step.shown)

    @staticmethod
    def _disturb(thread: _Thread, shown: int) -> None:
        if thread.disturbed_from is None or shown < thread.disturbed_from:
            thread.disturbed_from = shown


def _ends(text: str) -> str:
    """Of a text that its event holds cut, what is there however long the note before it was."""
    head, cut, tail = text.partition(_CUT)
    return text if not cut else f"{head[:_END]}{cut}{tail[-_END:]}"


def _plain(value: Any) -> Any:
    """The value without ids, which differ from task to task."""
    if isinstance(value, str):
        return _OUTPUT.sub(r"out_#_\1", _IDS.sub(r"\1_#", value))
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


@dataclass(frozen=True)
class LedgerRow:
    kind: str
    step_key: str
    state: str
    estimated: bool
    model: str | None
    prompt_tokens: int
    completion_tokens: int


@dataclass
class LedgerProjection:
    paid: dict[tuple[str, int], tuple[str | None, int, int]]
    """Thread and shown step → model, prompt tokens, completion tokens of the one call that was answered."""
    recovery: Counter[str]
    problems: list[str]


def project_ledger(rows: Iterable[LedgerRow], log: Projection) -> LedgerProjection:
    """Each step's answer is paid exactly once, and so is the summary before it, if there was one.

    What else was begun is released, estimated or marked as ambiguous.
    """
    calls: dict[tuple[str, str], list[LedgerRow]] = {}
    for row in rows:
        if row.kind == "model":
            step, _, purpose = row.step_key.rpartition(":")
            calls.setdefault((step, purpose), []).append(row)
    result = LedgerProjection({}, Counter(), [])
    for key in log.steps.keys() - {step for step, purpose in calls if purpose == "answer"}:
        result.problems.append(f"{key} was answered but is not in the ledger")
    for (key, purpose), entries in calls.items():
        exact = [row for row in entries if row.state == "settled" and not row.estimated]
        for row in entries:
            if row.state == "reserved":
                result.problems.append(f"{key} is still reserved")
            elif row not in exact:
                result.recovery["estimated" if row.state == "settled" else row.state] += 1
        if key not in log.steps:
            result.problems.append(f"{key} is in the ledger but was never answered")
        elif len(exact) != 1:
            said = [(row.state, row.estimated) for row in entries]
            result.problems.append(f"the {purpose} of {key} was paid {len(exact)} times: {said}")
        elif (place := log.steps[key]) is not None:
            thread, shown = place
            paid = (thread, shown) if purpose == "answer" else (f"{thread}, {purpose}", shown)
            result.paid[paid] = (exact[0].model, exact[0].prompt_tokens, exact[0].completion_tokens)
    return result


def differences(calm: Projection, stormy: Projection, *, most: int = 20) -> list[str]:
    """Where two logs differ; the order between threads counts too."""
    if calm.entries == stormy.entries:
        return []
    found: list[str] = []
    for name in dict.fromkeys([*calm.streams, *stormy.streams]):
        left, right = calm.stream(name), stormy.stream(name)
        for place, (ours, theirs) in enumerate(zip(left, right, strict=False)):
            if ours != theirs:
                found.append(f"{name} entry {place}: undisturbed {ours!r:.700}, disturbed {theirs!r:.700}")
                break
        else:
            if len(left) != len(right):
                found.append(f"{name}: {len(left)} entries undisturbed, {len(right)} disturbed")
    if not found:
        place = next(n for n, pair in enumerate(zip(calm.entries, stormy.entries, strict=True)) if pair[0] != pair[1])
        found.append(
            f"the threads interleave differently from entry {place}: {calm.entries[place]!r:.300}, "
            f"{stormy.entries[place]!r:.300}"
        )
    return found[:most]


def ledger_differences(
    calm: LedgerProjection, stormy: LedgerProjection, log: Projection, *, most: int = 20
) -> list[str]:
    """Where two ledgers differ. Prompts are compared up to the step that was told of a loss, answers always."""
    found = [f"undisturbed: {problem}" for problem in calm.problems]
    found += [f"disturbed: {problem}" for problem in stormy.problems]
    for place in sorted(calm.paid.keys() | stormy.paid.keys()):
        left, right = calm.paid.get(place), stormy.paid.get(place)
        if left is None or right is None:
            found.append(f"{place}: paid {left} undisturbed, {right} disturbed")
            continue
        first = log.disturbed.get(place[0])
        told = first is not None and place[1] >= first
        if (left[0], left[2]) != (right[0], right[2]) or (not told and left[1] != right[1]):
            found.append(f"{place}: paid {left} undisturbed, {right} disturbed")
    return found[:most]
