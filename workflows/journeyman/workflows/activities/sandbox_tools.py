"""The tools that agents call. Failures of a tool become text for the agent, never an exception."""

from typing import Any, Final

from journeyman.agents import arguments
from journeyman.agents.output import DEFAULT_LIMIT, cut_output, output_range, readable
from journeyman.agents.tools import ParsedCall
from journeyman.platform.artifacts import repository as artifacts
from journeyman.platform.kit import step_keys
from journeyman.platform.kit.database import Database
from journeyman.platform.kit.errors import JourneymanError
from journeyman.platform.kit.ids import derived_id
from journeyman.platform.kit.object_store import ObjectStore, blob_key, digest_of
from journeyman.platform.sandboxes.errors import SandboxFileError, SandboxLost, TooManyCommands
from journeyman.platform.sandboxes.port import WORKSPACE, ExecRequest, ExecResult, FileInfo, Sandbox
from journeyman.platform.threads import repository as threads
from journeyman.workflows.activities.knowledge import Knowledge
from journeyman.workflows.activities.tool_calls import ToolResult
from journeyman.workflows.types import ThreadRef

MAX_EDIT_BYTES: Final = 8 * 1024 * 1024
OUTPUT_LIMIT: Final = 8 * 1024 * 1024
"""Bytes of a command's output that are kept; of more, the middle is left out by the sandbox."""
_DISK_FULL: Final = (
    "The sandbox's disk is full: /workspace, /artifacts, /tmp and the home directory share it. Delete what is not "
    "needed any more, with shell."
)


class EditJournal:
    """The stored effect of one edit, so that a repeated attempt recognizes it. ``earlier``: what an earlier attempt stored."""

    def __init__(self, database: Database, call_key: str, earlier: str | None) -> None:
        self._database = database
        self._call_key = call_key
        self.earlier = earlier

    async def store(self, effect: str) -> None:
        """Store what the call is about to write, before it does."""
        async with self._database.transaction() as session:
            await threads.note_effect(session, self._call_key, effect)


class KeptOutputs:
    """Whole outputs of a thread's tool calls, which the agent saw only a part of."""

    def __init__(self, database: Database, store: ObjectStore, thread: ThreadRef) -> None:
        self._database = database
        self._store = store
        self._thread = thread

    async def read(self, output_id: str) -> bytes | None:
        """The output that the agent knows under this id; None if none was kept."""
        task = self._thread.task
        artifact_id = derived_id(
            "artifact", task.task_id, "tool_output", step_keys.part(self._thread.thread_id, output_id)
        )
        async with self._database.transaction() as session:
            artifact = await artifacts.find(session, task.task_id, artifact_id)
        return None if artifact is None else await self._store.get(blob_key(task.project_id, artifact.digest))


class SandboxTools:
    """The tools of one call. ``exec_id`` and ``output_id`` are the same for every attempt at the same call."""

    def __init__(
        self,
        sandbox: Sandbox,
        *,
        exec_id: str,
        output_id: str,
        journal: EditJournal,
        outputs: KeptOutputs,
        knowledge: Knowledge,
    ) -> None:
        self._sandbox = sandbox
        self._exec_id = exec_id
        self._output_id = output_id
        self._journal = journal
        self._outputs = outputs
        self._knowledge = knowledge

    async def run(self, call: ParsedCall) -> ToolResult:
        """Raises only :class:`SandboxLost`, which the caller handles, and errors of the platform's own stores."""
        try:
            return await self._dispatch(call.arguments)
        except SandboxLost:
            raise
        except JourneymanError as error:
            if error.retryable and not isinstance(error, TooManyCommands):
                raise
            if isinstance(error, SandboxFileError) and error.kind == "no_space":
                text = f"Error: {error.message}; nothing was written. {_DISK_FULL}"
                return ToolResult(text, {"error": error.code}, ok=False, limits=("disk",))
            return ToolResult(f"Error: {error.message}", {"error": error.code}, ok=False)

    async def _dispatch(self, given: object) -> ToolResult:
        match given:
            case arguments.Shell():
                return await self._shell(given)
            case arguments.ReadFile():
                return await self._read_file(given)
            case arguments.WriteFile():
                return await self._write_file(given)
            case arguments.EditFile():
                return await self._edit_file(given)
            case arguments.Search():
                return await self._search(given)
            case arguments.ListFiles():
                return await self._list_files(given)
            case arguments.ReadOutput():
                return await self._read_output(given)
            case arguments.Recall():
                return ToolResult(await self._knowledge.recall(given.query))
            case arguments.Remember():
                return ToolResult(await self._knowledge.remember(given.text))
            case arguments.PostNote():
                return ToolResult(await self._knowledge.post_note(given))
            case arguments.ReadNotes():
                return ToolResult(await self._knowledge.read_notes(given))
            case _:
                raise TypeError(f"no tool takes {type(given).__name__}")

    async def _shell(self, given: arguments.Shell) -> ToolResult:
        background = bool(given.background)
        result = await self._sandbox.run(
            ExecRequest(
                exec_id=self._exec_id,
                command=given.command,
                cwd=WORKSPACE,
                timeout_s=float(given.timeout_s or arguments.DEFAULT_TIMEOUT_S),
                background=background,
                end_leftovers=True,
                output_limit=OUTPUT_LIMIT,
            )
        )
        status = _status(result, given)
        shown = cut_output(result.output, self._output_id)
        data = {
            "exit_code": result.exit_code,
            "signal": result.signal,
            "timed_out": result.timed_out,
            "oom_killed": result.oom_killed,
            "duration_s": round(result.duration_s, 4),
            "output_bytes": result.total_bytes,
            "running": result.running,
            "reattached": result.reattached,
            "leftovers": result.leftovers,
        }
        for line in _remarks(result):
            status += f"\n[{line}]"
        if result.running:
            status += f' It goes on in the background; read its output with read_output: output_id "{self._exec_id}".'
        text = f"{shown.text}\n{status}" if shown.text else status
        return ToolResult(
            text,
            data,
            output=result.output if shown.truncated else None,
            ok=result.exit_code == 0 or result.running,
            limits=_limits(result),
        )

    async def _read_file(self, given: arguments.ReadFile) -> ToolResult:
        content = await self._sandbox.read_file(absolute(given.path), length=MAX_EDIT_BYTES + 1)
        if len(content) > MAX_EDIT_BYTES:
            return ToolResult(
                f"Error: {given.path} is larger than {MAX_EDIT_BYTES // 1024 // 1024} MiB. Look at parts of it with "
                "shell (head, sed -n, grep).",
                ok=False,
            )
        lines = readable(content).splitlines()
        first = given.start_line or 1
        last = min(given.end_line or len(lines), len(lines))
        if not lines:
            return ToolResult(f"[{given.path} is empty]")
        if first > len(lines):
            return ToolResult(f"Error: {given.path} has {len(lines)} lines; there is no line {first}.", ok=False)
        width = len(str(last))
        text = "\n".join(f"{number:>{width}}\t{lines[number - 1]}" for number in range(first, last + 1))
        if last < len(lines) or first > 1:
            text = f"[lines {first} to {last} of {len(lines)}]\n{text}"
        return self._listed(text, {"lines": len(lines)})

    async def _write_file(self, given: arguments.WriteFile) -> ToolResult:
        data = given.content.encode()
        await self._sandbox.write_file(absolute(given.path), data)
        return ToolResult(f"Wrote {len(data):,} bytes to {given.path}.", {"bytes": len(data)})

    async def _edit_file(self, given: arguments.EditFile) -> ToolResult:
        path = absolute(given.path)
        content = await self._sandbox.read_file(path, length=MAX_EDIT_BYTES + 1)
        if len(content) > MAX_EDIT_BYTES:
            return ToolResult(f"Error: {given.path} is too large to edit; nothing was changed. Use shell.", ok=False)
        old, new = given.old.encode(), given.new.encode()
        count = content.count(old)
        written, _, edits = (self._journal.earlier or "").partition(" ")
        if written == digest_of(content):
            # An attempt that died before its result was stored has written this already.
            return _edited(given.path, int(edits))
        if count == 0:
            return ToolResult(
                f"Error: `old` does not occur in {given.path}; nothing was changed. Read the file again and copy the "
                "text exactly, white space included.",
                {"occurrences": 0},
                ok=False,
            )
        if count > 1 and not given.replace_all:
            return ToolResult(
                f"Error: `old` occurs {count} times in {given.path}; nothing was changed. Give more of the lines around "
                "it, or set replace_all.",
                {"occurrences": count},
                ok=False,
            )
        changed = content.replace(old, new)
        await self._journal.store(f"{digest_of(changed)} {count}")
        await self._sandbox.write_file(path, changed)
        return _edited(given.path, count)

    async def _search(self, given: arguments.Search) -> ToolResult:
        hits = await self._sandbox.search(given.pattern, absolute(given.path or WORKSPACE), given.glob)
        if not hits:
            return ToolResult("No matches.", {"matches": 0})
        text = "\n".join(f"{hit.path}:{hit.line}: {hit.text}" for hit in hits)
        return self._listed(text, {"matches": len(hits)})

    async def _list_files(self, given: arguments.ListFiles) -> ToolResult:
        entries = await self._sandbox.list_files(absolute(given.path or WORKSPACE), depth=given.depth or 2)
        if not entries:
            return ToolResult("[empty]", {"entries": 0})
        text = "\n".join(_entry_line(entry) for entry in entries)
        return self._listed(text, {"entries": len(entries)})

    def _listed(self, text: str, data: dict[str, Any]) -> ToolResult:
        """A text of our own making, cut like a command's output when it is long, and then kept in full."""
        encoded = text.encode("utf-8", "backslashreplace")
        shown = cut_output(encoded, self._output_id)
        return ToolResult(shown.text, data, output=encoded if shown.truncated else None)

    async def _read_output(self, given: arguments.ReadOutput) -> ToolResult:
        kept = await self._outputs.read(given.output_id)
        if kept is None:
            try:
                kept = (await self._sandbox.poll(given.output_id)).output
            except SandboxLost:
                raise
            except JourneymanError:
                return ToolResult(f"Error: there is no output {given.output_id!r} in this task.", ok=False)
        end = min(given.end, given.start + DEFAULT_LIMIT)
        return ToolResult(output_range(kept[given.start : end], given.start, len(kept)))


def _entry_line(entry: FileInfo) -> str:
    if entry.kind == "directory":
        return f"{entry.path}/"
    return f"{entry.path}  ({entry.size:,} bytes)" if entry.kind == "file" else f"{entry.path}  ({entry.kind})"


def absolute(path: str) -> str:
    """Paths are absolute, or relative to the workspace."""
    return path if path.startswith("/") else f"{WORKSPACE}/{path}"


def _status(result: ExecResult, given: arguments.Shell) -> str:
    if result.running:
        return "[started]"
    if result.timed_out:
        limit = given.timeout_s or arguments.DEFAULT_TIMEOUT_S
        return f"[timed out after {limit} s: the command and all its children were killed]"
    if result.oom_killed:
        return "[killed: the sandbox ran out of memory]"
    if result.signal is not None:
        return f"[killed by signal {result.signal}]"
    return f"[exit code {result.exit_code}]"


def _remarks(result: ExecResult) -> list[str]:
    """What the agent has to know of the sandbox beside how the command ended."""
    remarks = []
    if result.leftovers:
        number = "1 process" if result.leftovers == 1 else f"{result.leftovers} processes"
        remarks.append(f"{number} left running by the command ended with it; background: true is for what is to go on")
    if result.pids_hit:
        remarks.append("the sandbox ran out of processes: all that it may have at once were in use")
    if result.disk_full:
        remarks.append(_DISK_FULL)
    return remarks


def _limits(result: ExecResult) -> tuple[str, ...]:
    found = {
        "memory": result.oom_killed,
        "time": result.timed_out and not result.oom_killed,
        "pids": result.pids_hit,
        "disk": result.disk_full,
    }
    return tuple(limit for limit, hit in found.items() if hit)


def _edited(path: str, count: int) -> ToolResult:
    places = "1 place" if count == 1 else f"{count} places"
    return ToolResult(f"Edited {path} in {places}.", {"occurrences": count})
