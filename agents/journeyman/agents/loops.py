"""Circuit breaker: notices an agent that goes round in circles, before it has burnt a budget.

A pure state machine. The caller feeds every finished tool call and keeps the state, which is small and serialisable. At
half way an agent is *nudged*, once, by a note that often suffices; at the threshold the breaker *trips*: the task pauses
and a person is told. After a person resumed, or after a trip of any kind, start with a fresh ``Window``.
"""

import posixpath
from collections.abc import Mapping
from statistics import fmean, median
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from journeyman.agents.canonical import digest

SLOW_S: Final = 10.0
"""Seconds after which a call counts as waiting."""

_DIGITS: Final = 16
_MAX_PERIOD: Final = 6
_MOVES_KEPT: Final = 24
_RATES_KEPT: Final = 60


class Thresholds(BaseModel):
    """When to nudge and when to trip. The defaults are meant to be seen by no agent that gets anywhere.

    repeat: the same call with the same result in the same workspace. A third time can be an honest retry or a look at
        something slow; a sixth tells nothing that the fifth did not.
    undo: the same change of the whole workspace, from one state to another, made again and again: edits that take each
        other back, however differently they are spelt. Trying one thing after another from the same state is none.
    cycle: rounds of an A-B-A-B (or up to six different calls) that always ends as it began. One call more than a repeat
        in information, so the same patience counted in rounds.
    patience: a repetition or circle in which calls took long is somebody waiting for a background command, and is given
        this many times the rounds. What waits for something that moves, the same call with another result, is not idle.
    idle: calls of a Coder that left the workspace as it was. Reading into a large project takes 20 to 30; beyond that
        nothing is being made.
    spike: mean new tokens of the last ``spike_recent`` model calls against the median of those before. Per call and not
        per second, because a faster engine is no fault. Below ``spike_floor`` tokens per call it is cheap and ignored:
        the first reads of large files look like spikes too.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    repeat_nudge: int = Field(default=3, ge=2)
    repeat_trip: int = Field(default=6, ge=2)
    cycle_nudge: int = Field(default=3, ge=2)
    cycle_trip: int = Field(default=5, ge=2)
    undo_nudge: int = Field(default=3, ge=2)
    undo_trip: int = Field(default=5, ge=2)
    patience: int = Field(default=5, ge=1)
    idle_nudge: int = Field(default=30, ge=2)
    idle_trip: int = Field(default=60, ge=2)
    spike_factor: float = Field(default=8.0, gt=1)
    spike_floor: int = Field(default=20_000, ge=0)
    spike_recent: int = Field(default=5, ge=1)
    spike_history: int = Field(default=15, ge=1)


class ObservedCall(BaseModel):
    """One finished tool call. Digests are compared, never read; 16 hex digits of them are kept.

    ``workspace`` is the digest after the call; ``None`` for roles that work in a fork, whose changes do not count.
    ``new_tokens`` are those of the model call that asked for this step, uncached prompt and completion together; 0 for
    further calls of the same answer.
    """

    model_config = ConfigDict(frozen=True)

    tool: str
    arguments: str
    result: str
    workspace: str | None = None
    new_tokens: int = Field(default=0, ge=0)
    slow: bool = False
    """The call took ``SLOW_S`` or longer: whoever repeats it is waiting."""


class Window(BaseModel):
    """What is remembered: the last calls as short keys, the last changes of the workspace, and two counters."""

    model_config = ConfigDict(frozen=True)

    keys: tuple[str, ...] = ()
    slow: tuple[bool, ...] = ()
    moves: tuple[str, ...] = ()
    workspace: str | None = None
    idle: int = 0
    rates: tuple[int, ...] = ()


class Alarm(BaseModel):
    """What was noticed. ``message`` is for the agent when nudging, for people when tripped."""

    model_config = ConfigDict(frozen=True)

    kind: Literal["repeat", "undo", "cycle", "idle", "token_spike"]
    level: Literal["nudge", "trip"]
    message: str


def observe(window: Window, step: ObservedCall, thresholds: Thresholds | None = None) -> tuple[Window, Alarm | None]:
    """The window after the step, and the most serious alarm it gives rise to, if any."""
    limits = thresholds or Thresholds()
    workspace = step.workspace[:_DIGITS] if step.workspace is not None else None
    key = "\x1f".join((step.tool, step.arguments[:_DIGITS], step.result[:_DIGITS], workspace or ""))
    keep = _kept(limits)
    unchanged = workspace is not None and workspace == window.workspace
    moved = workspace is not None and window.workspace is not None and not unchanged
    idle = window.idle + 1 if unchanged else 0
    if unchanged and _answers_anew(window, key):
        # Something outside the workspace moves, and is being waited for.
        idle = window.idle
    after = Window(
        keys=(*window.keys, key)[-keep:],
        slow=(*window.slow, step.slow)[-keep:],
        moves=(*window.moves, f"{window.workspace}>{workspace}")[-_MOVES_KEPT:] if moved else window.moves,
        workspace=workspace,
        idle=idle,
        rates=(*window.rates, step.new_tokens)[-_RATES_KEPT:] if step.new_tokens else window.rates,
    )
    alarms = [
        alarm
        for alarm in (
            _repeat(after, step.tool, limits),
            _cycle(after, limits),
            _undo(after, limits) if moved else None,
            _idle(after, limits) if idle > window.idle else None,
            _spike(after, limits) if step.new_tokens else None,
        )
        if alarm is not None
    ]
    return after, next((alarm for alarm in alarms if alarm.level == "trip"), alarms[0] if alarms else None)


def is_at(window: Window, workspace: str) -> bool:
    """Whether the last call left the workspace with this digest."""
    return window.workspace == workspace[:_DIGITS]


def spelled(arguments: Mapping[str, Any]) -> str:
    """The digest of a call's arguments without what changes nothing but the spelling: spaces, ``./``, how long to wait."""
    plain = {name: value for name, value in arguments.items() if name != "timeout_s"}
    if isinstance(command := plain.get("command"), str):
        plain["command"] = " ".join(command.split()).rstrip(" ;")
    if isinstance(path := plain.get("path"), str):
        plain["path"] = posixpath.normpath(path)
    return digest(plain)


def _kept(limits: Thresholds) -> int:
    """How many calls are remembered: as many as the longest pattern that trips."""
    return max(limits.repeat_trip * limits.patience, _MAX_PERIOD * limits.cycle_trip) + 1


def _answers_anew(window: Window, key: str) -> bool:
    """Whether the same call was made before, in the same workspace, and gave another result each time."""
    call, result = _split(key)
    earlier = [other for same, other in map(_split, window.keys) if same == call]
    return bool(earlier) and result not in earlier


def _split(key: str) -> tuple[tuple[str, str, str], str]:
    tool, arguments, result, workspace = key.split("\x1f")
    return (tool, arguments, workspace), result


def _level(count: int, nudge: int, trip: int) -> Literal["nudge", "trip"] | None:
    if count >= trip:
        return "trip"
    return "nudge" if count == nudge else None


def _repeat(window: Window, tool: str, limits: Thresholds) -> Alarm | None:
    last = window.keys[-1]
    count = 0
    for key in reversed(window.keys):
        if key != last:
            break
        count += 1
    waiting = any(window.slow[-count:])
    level = _level(count, limits.repeat_nudge, limits.repeat_trip * (limits.patience if waiting else 1))
    if level is None:
        return None
    fact = f"The same `{tool}` call gave the same result {count} times in a row, and the workspace did not change."
    advice = (
        " Another repetition will not help: change something, look elsewhere, or hand over what is done with a summary "
        "of what blocks you. If you wait for a background command, wait longer within one call."
    )
    return Alarm(kind="repeat", level=level, message=fact + (advice if level == "nudge" else ""))


def _undo(window: Window, limits: Thresholds) -> Alarm | None:
    count = window.moves.count(window.moves[-1])
    level = _level(count, limits.undo_nudge, limits.undo_trip)
    if level is None:
        return None
    fact = f"The workspace went from one state to the same other one {count} times: edits take each other back."
    advice = " Decide which of the two is right, by a test if you can, and say in your summary why the other is not."
    return Alarm(kind="undo", level=level, message=fact + (advice if level == "nudge" else ""))


def _cycle(window: Window, limits: Thresholds) -> Alarm | None:
    keys = window.keys
    for period in range(2, _MAX_PERIOD + 1):
        if len(keys) < 2 * period or _has_shorter_period(keys[-period:]):
            continue
        length = period
        while length < len(keys) and keys[-1 - length] == keys[-1 - length + period]:
            length += 1
        # Nudge only on the call that completes the round, or every call of the next round would nudge again.
        waiting = any(window.slow[-length:])
        trip = min(limits.cycle_trip * limits.patience, _kept(limits) // period) if waiting else limits.cycle_trip
        level = _level(length // period, limits.cycle_nudge, trip)
        if level == "trip" or (level == "nudge" and length % period == 0):
            fact = f"The same {period} calls with the same results have been repeated {length // period} times."
            advice = (
                " You are going in a circle. ObservedCall back: what do you know now, and what else could be the cause?"
            )
            return Alarm(kind="cycle", level=level, message=fact + (advice if level == "nudge" else ""))
    return None


def _has_shorter_period(keys: tuple[str, ...]) -> bool:
    whole = len(keys)
    return any(whole % part == 0 and keys == keys[:part] * (whole // part) for part in range(1, whole))


def _idle(window: Window, limits: Thresholds) -> Alarm | None:
    level = _level(window.idle, limits.idle_nudge, limits.idle_trip)
    if level is None:
        return None
    fact = f"The last {window.idle} calls left the workspace unchanged."
    advice = (
        " If you know enough, make a change and test it; if something blocks you, submit a summary of what you found."
    )
    return Alarm(kind="idle", level=level, message=fact + (advice if level == "nudge" else ""))


def _spike(window: Window, limits: Thresholds) -> Alarm | None:
    recent, before = window.rates[-limits.spike_recent :], window.rates[: -limits.spike_recent]
    if len(before) < limits.spike_history:
        return None
    usual, now = median(before), fmean(recent)
    if now < limits.spike_floor or now <= usual * limits.spike_factor:
        return None
    message = (
        f"The last {len(recent)} model calls used {now:,.0f} new tokens each, {now / max(usual, 1):.0f} times what was "
        f"usual in this thread ({usual:,.0f})."
    )
    return Alarm(kind="token_spike", level="trip", message=message)
