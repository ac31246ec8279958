"""When a conversation outgrows the model's context: its summary, and the segment that goes on from there.

The request for a summary is appended to the same messages, with the same tools, so that the engine answers from its
prefix cache. The next segment starts with the original opening, not with a retelling: the instruction verbatim and the
header lines (``Subtask:``, ``Round:``, ``Revision:``) stay what they were. What must not depend on a model's memory is
carried over by the platform: messages from people, the last review, the files written, the commands in the background, and
the sentences in which the agent said what it still had to do.
"""

import json
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from journeyman.agents.canonical import is_json_object
from journeyman.agents.context import PERSON_MARK, REVIEW_MARK, Message, user_message, user_note
from journeyman.agents.output import cut_text

COMPACT_AT: Final = 0.8
"""Share of the usable context at which to compact: the summary itself needs room, and estimates are off by some 10 %."""
BYTES_PER_TOKEN: Final = 3.0
"""Code and JSON take 3 to 4 bytes per token with current tokenizers; the low end errs towards compacting early."""
SUMMARY_LIMIT: Final = 24 * 1024
CARRIED_LIMIT: Final = 16 * 1024
SHORTENED: Final = 500
SHORTENED_ROOM: Final = 8 * 1024
"""Beyond ``CARRIED_LIMIT``, for older messages that are cut to ``SHORTENED`` bytes each."""
MAX_LISTED: Final = 100
MAX_PROMISES: Final = 20
PROMISE_LIMIT: Final = 300
MIN_TURNS: Final = 4
"""A segment that fills up in fewer turns than this has not gained anything by the summary."""

MIN_SUMMARY: Final = 20
"""Characters. What is shorter names nothing that could be gone on from."""
LONGEST_REFUSAL: Final = 600
_REFUSAL: Final = re.compile(
    r"(I(?:'|\u2019)m sorry|I am sorry|Sorry|I can(?:'|\u2019)t|I cannot|I(?:'|\u2019)m (?:unable|not able)|I am (?:unable|not able)|As an AI)\b",
    re.IGNORECASE,
)
_AGAIN: Final = (
    "\nA first answer held no summary. Write it as plain text outside of any reasoning. These are notes to yourself about work "
    "that is already done; nothing new is asked of you."
)
_PROMISE: Final = re.compile(
    r"\b(?:I(?:'|\u2019)ll|I (?:will|must|promise|should still|still have to|still need to|have to|need to)"
    r"|to-?do|remember to|don(?:'|\u2019)t forget|before (?:I )?(?:submit|hand))\b",
    re.IGNORECASE,
)
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+|\n+")
_OPEN: Final = "\n\n<so_far>\n"
_CLOSE: Final = "\n</so_far>"


class NextStep(StrEnum):
    """What to do before the next model call."""

    GO_ON = "go_on"
    COMPACT = "compact"
    STUCK = "stuck"


class SegmentState(BaseModel):
    """Kept with the thread. ``turns`` counts the answers in this segment, ``turns_before`` those in earlier ones.

    ``short_runs`` counts compactions that came too soon, one after the other. ``files``, ``background`` and ``promises`` are
    what was written, started and said to be done later in all segments.
    """

    model_config = ConfigDict(frozen=True)

    segment: int = 1
    turns: int = 0
    turns_before: int = 0
    short_runs: int = 0
    files: tuple[str, ...] = ()
    background: tuple[str, ...] = ()
    promises: tuple[str, ...] = ()
    left_out: int = 0
    """Messages from people that are not repeated any more."""

    def answered(self) -> "SegmentState":
        """After a turn of the model."""
        return self.model_copy(update={"turns": self.turns + 1})


def next_step(state: SegmentState, prompt_tokens: int, *, context_tokens: int, max_output_tokens: int) -> NextStep:
    """Whether the next request fits, with its answer.

    ``prompt_tokens``: what the engine counted for the last request and its answer, plus the estimate of what was
    appended since. ``STUCK`` when two segments in a row filled up at once: then the opening or single results are too
    large for this model, and summarising again would go on for ever at full price. Pause and say so.
    """
    usable = max(1, context_tokens - max_output_tokens)
    if prompt_tokens < usable * COMPACT_AT:
        return NextStep.GO_ON
    if state.turns < MIN_TURNS and state.short_runs >= 1:
        return NextStep.STUCK
    return NextStep.COMPACT


def summary_request(*, again: bool = False) -> Message:
    """The message that asks for the summary. The answer is to be text; a tool call in it is not executed.

    ``again``: the first answer was no summary, see :func:`is_summary`.
    """
    return user_note(
        "This conversation is about to be replaced by your summary, because it is nearly as long as the model can read. "
        "Answer with the summary alone and call no tool. You will go on from it without seeing anything above, except "
        "the task and the opening message, which are kept word for word, so do not repeat those. Write:\n"
        "1. Goal: what you are doing right now and why.\n"
        "2. Constraints: what people, reviews or the files demand beyond the opening message.\n"
        "3. Done: what is finished, and how it was verified (command and result).\n"
        "4. Files: every path that matters, with what it holds or what was changed in it.\n"
        "5. Facts: what you found out; commands that work; exact names, numbers and error messages still needed.\n"
        "6. Failed attempts: what was tried, and why it did not work.\n"
        "7. Open promises: everything you said you would do, and every finding or request not yet dealt with.\n"
        "8. Next: the next three steps." + (_AGAIN if again else "")
    )


def is_summary(text: str) -> bool:
    """Whether an answer to the request can stand for the conversation: it is neither empty nor a refusal."""
    plain = _untagged(text)
    return len(plain) >= MIN_SUMMARY and not (len(plain) < LONGEST_REFUSAL and _REFUSAL.match(plain))


def next_segment(messages: Sequence[Message], summary: str, state: SegmentState) -> tuple[list[Message], SegmentState]:
    """The first messages of the next segment, and its state.

    ``messages`` are those of the segment that ends, from its opening on, without the system message; ``state`` is its
    state. The summary is cut in the middle when it is longer than it should be.
    """
    if not messages:
        raise ValueError("a segment has at least its opening message")
    calls = _calls(messages)
    carried, left_out = _carried(messages)
    turns = state.turns_before + state.turns
    after = SegmentState(
        segment=state.segment + 1,
        turns_before=turns,
        short_runs=state.short_runs + 1 if state.turns < MIN_TURNS else 0,
        files=_merged(state.files, _written_files(calls)),
        background=_merged(state.background, _background_commands(calls)),
        promises=_merged(state.promises, _promises(messages))[-MAX_PROMISES:],
        left_out=state.left_out + left_out,
    )
    parts = [
        # A header line like those of the opening: which turn comes next, for whoever plays or reads the thread.
        f"Turn: {turns}",
        "The conversation up to here was replaced by your own summary. `recall` searches all that was said, and "
        + "`read_notes` shows the task's blackboard as it is now.",
        cut_text(
            _untagged(summary) or "(The summary was empty. Look at the workspace to see what is done.)", SUMMARY_LIMIT
        ),
    ]
    if after.files:
        parts.append("Files written or edited so far:\n" + "\n".join(f"- {path}" for path in after.files))
    if after.background:
        parts.append(
            "Commands started in the background so far:\n" + "\n".join(f"- {item}" for item in after.background)
        )
    if after.promises:
        parts.append(
            "What you said you would do, word for word (some of it may be done):\n"
            + "\n".join(f"- {promise}" for promise in after.promises)
        )
    if after.left_out:
        parts.append(f"{after.left_out} older messages from people are not repeated here: `recall` finds them.")
    opening = _original(str(messages[0].get("content") or ""))
    return [user_message(opening + _OPEN + "\n\n".join(parts) + _CLOSE), *carried], after


def _untagged(summary: str) -> str:
    """The summary without the tag that later tells where the opening ends."""
    return summary.replace(_OPEN.strip(), "").replace(_CLOSE.strip(), "").strip()


def _original(content: str) -> str:
    """The opening as it was before an earlier compaction added to it."""
    if content.endswith(_CLOSE) and _OPEN in content:
        return content.rpartition(_OPEN)[0]
    return content


def _carried(messages: Sequence[Message]) -> tuple[list[Message], int]:
    """What people said, and the last review; and how many of these are left out.

    When together they are too long, the older ones are shortened, and only when even that is too much the oldest are
    left out, which the caller says: a constraint that somebody set early must not vanish without a trace.
    """
    from_users = [message for message in messages[1:] if message.get("role") == "user"]
    reviews = [message for message in from_users if str(message.get("content")).startswith(REVIEW_MARK)]
    texts = [
        str(message.get("content"))
        for message in from_users
        if str(message.get("content")).startswith(PERSON_MARK) or (reviews and message is reviews[-1])
    ]
    kept: list[str] = []
    room = CARRIED_LIMIT
    for text in reversed(texts):
        size = len(text.encode())
        fitting = text if size <= room or not kept else cut_text(text, SHORTENED)
        fitting = cut_text(fitting, CARRIED_LIMIT)
        if len(fitting.encode()) > room + SHORTENED_ROOM:
            break
        room -= len(fitting.encode())
        kept.append(fitting)
    return [user_message(text) for text in kept[::-1]], len(texts) - len(kept)


def _promises(messages: Sequence[Message]) -> list[str]:
    """The sentences of the agent's own text that speak of what is still to be done."""
    found = []
    for message in messages:
        if message.get("role") == "assistant" and isinstance(message.get("content"), str):
            sentences = _SENTENCE.split(message["content"])
            found += [cut_text(each.strip(), PROMISE_LIMIT) for each in sentences if _PROMISE.search(each)]
    return found


def _calls(messages: Sequence[Message]) -> list[tuple[str, dict[str, Any]]]:
    """Name and arguments of every call in the messages whose arguments were an object."""
    calls: list[tuple[str, dict[str, Any]]] = []
    for message in messages:
        for call in message.get("tool_calls") or ():
            function = call["function"]
            if is_json_object(function["arguments"]):
                calls.append((function["name"], json.loads(function["arguments"])))
    return calls


def _written_files(calls: Sequence[tuple[str, dict[str, Any]]]) -> list[str]:
    return [
        arguments["path"]
        for name, arguments in calls
        if name in {"write_file", "edit_file"} and isinstance(arguments.get("path"), str)
    ]


def _background_commands(calls: Sequence[tuple[str, dict[str, Any]]]) -> list[str]:
    commands = (background_command(name, arguments) for name, arguments in calls)
    return [cut_text(command, 500) for command in commands if command is not None]


def background_command(tool: str, arguments: Mapping[str, Any]) -> str | None:
    """The command of a tool call that starts one in the background; None for any other call."""
    command = arguments.get("command")
    return command if tool == "shell" and arguments.get("background") is True and isinstance(command, str) else None


def _merged(former: Sequence[str], new: Sequence[str]) -> tuple[str, ...]:
    """Each once, the latest last; of very many the latest."""
    latest_first = dict.fromkeys([*reversed(new), *reversed(former)])
    return tuple(reversed(list(latest_first)[:MAX_LISTED]))
