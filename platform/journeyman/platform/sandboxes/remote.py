"""A sandbox behind an agent, wherever the agent runs: the :class:`~.port.Sandbox` of every driver."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, TypeVar

from journeyman.platform.kit.errors import InvalidInput
from journeyman.platform.sandboxes.agent.protocol import CHUNK, MAX_COMMAND, MAX_STDIN
from journeyman.platform.sandboxes.observation import observed_run
from journeyman.platform.sandboxes.port import (
    WORKSPACE,
    ExecRequest,
    ExecResult,
    FileChunk,
    FileInfo,
    OutputCallback,
    Scan,
    SearchHit,
    TreeEntry,
)
from journeyman.platform.sandboxes.wire import Call, Dial, calling

MAX_OUTPUT_LIMIT = 16 * 1024 * 1024
MAX_TREE_ENTRIES = 200_000
MAX_CARRIED_BYTES = 64 * 1024
"""Of small files that a scan brings along, all together."""
MAX_LISTED = 5_000
MAX_HITS = 500
SEARCH_S = 15.0
_EXEC_ID = re.compile(r"[A-Za-z0-9_.:/-]{1,200}")
_KINDS = {"f": "file", "d": "directory", "l": "symlink"}
_LETTERS = {kind: letter for letter, kind in _KINDS.items()}
Row = TypeVar("Row")
_DIGEST = re.compile(r"[0-9a-f]{64}")


def marker(left_out: int) -> bytes:
    """The line that stands for the middle of an output that was too long."""
    return f"\n[... {left_out} bytes left out ...]\n".encode()


def _batches(rows: Iterable[Row]) -> Iterator[tuple[list[Row], bytes]]:
    """Rows and their JSON array, about a chunk of bytes each: a frame holds bytes, however many rows they are."""
    batch: list[Row] = []
    encoded: list[str] = []
    size = 0
    for row in rows:
        text = json.dumps(row, separators=(",", ":"))
        batch.append(row)
        encoded.append(text)
        size += len(text) + 1
        if size > CHUNK:
            yield batch, f"[{','.join(encoded)}]".encode()
            batch, encoded, size = [], [], 0
    if batch:
        yield batch, f"[{','.join(encoded)}]".encode()


def _tree_row(entry: TreeEntry) -> list[Any]:
    return [entry.path, _LETTERS[entry.kind], entry.mode, entry.size, entry.target or entry.sha256]


def _slices(data: bytes) -> Iterator[tuple[bytes, bool]]:
    """Upload frames, each with whether more follow."""
    for start in range(0, max(len(data), 1), CHUNK):
        yield data[start : start + CHUNK], start + CHUNK < len(data)


class AgentSandbox:
    """Speaks to one agent; holds no connection between calls."""

    def __init__(self, sandbox_id: str, dial: Dial, token: str, *, max_snapshot_bytes: int) -> None:
        self._id = sandbox_id
        self._dial = dial
        self._token = token
        self._max_snapshot_bytes = max_snapshot_bytes

    @property
    def id(self) -> str:
        return self._id

    def call(
        self, op: str, payload: bytes = b"", *, timeout_s: float = 30.0, **parameters: Any
    ) -> AbstractAsyncContextManager[Call]:
        return calling(self._dial, self._id, self._token, {"op": op, **parameters}, payload, timeout_s=timeout_s)

    @observed_run("local")
    async def run(self, request: ExecRequest, on_output: OutputCallback | None = None) -> ExecResult:
        _check(request)
        # The agent enforces the timeout, and needs a moment for it; that it does so is not taken on trust.
        patience = (30.0 if request.background else request.timeout_s + 15.0) + 5.0
        script = request.command.encode("utf-8", "surrogateescape") if isinstance(request.command, str) else b""
        first, *rest = list(_slices(script + request.stdin))
        async with self.call(
            "run",
            first[0],
            timeout_s=patience,
            more=first[1],
            exec_id=request.exec_id,
            command=None if isinstance(request.command, str) else list(request.command),
            script_bytes=len(script),
            cwd=request.cwd,
            env=dict(request.env),
            limit_s=request.timeout_s,
            background=request.background,
            end_leftovers=request.end_leftovers,
            output_limit=request.output_limit,
            follow=on_output is not None,
        ) as call:
            for part, more in rest:
                await call.send({"more": more}, part)
            try:
                async with asyncio.timeout(patience):
                    result = asyncio.ensure_future(self._result(call, request.exec_id, request.output_limit, on_output))
                    return await self._watched(result)
            except TimeoutError:
                raise call.lost("it did not end a command at its timeout") from None

    async def _watched(self, result: "asyncio.Future[ExecResult]") -> ExecResult:
        """The result, unless the agent falls silent first: a frozen one must not cost a command's whole patience."""
        try:
            while not (await asyncio.wait({result}, timeout=_PING_EVERY_S))[0]:
                await self.ping()
            return result.result()
        finally:
            result.cancel()

    async def poll(self, exec_id: str) -> ExecResult:
        async with self.call("poll", exec_id=exec_id) as call:
            return await self._result(call, exec_id, MAX_OUTPUT_LIMIT, None)

    async def _result(
        self, call: Call, exec_id: str, output_limit: int, on_output: OutputCallback | None
    ) -> ExecResult:
        kept = bytearray()
        async for header, payload in call.until_end():
            if "out" in header:
                kept += payload
                if len(kept) > output_limit + CHUNK:
                    raise call.lost("it sent more output than was asked for")
            elif "at" in header and on_output is not None:
                on_output(int(header["at"]), payload)
            elif "end" in header:
                return _exec_result(exec_id, header, bytes(kept))
        raise call.lost("it gave no result")

    async def kill(self, exec_id: str) -> None:
        async with self.call("kill", exec_id=exec_id) as call:
            await call.end()

    async def read_file(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        if start < 0 or (length is not None and length < 0):
            raise InvalidInput("start and length of a range cannot be negative")
        data = bytearray()
        async with self.call("read", path=path, start=start, length=length) as call:
            async for header, payload in call.until_end():
                data += payload
                if "end" not in header and len(data) > MAX_OUTPUT_LIMIT + CHUNK:
                    raise call.lost("it sent more of a file than was asked for")
        return bytes(data)

    async def write_file(self, path: str, data: bytes, mode: int | None = None) -> None:
        first, *rest = list(_slices(data))
        async with self.call("write", first[0], path=path, mode=mode, more=first[1]) as call:
            for part, more in rest:
                await call.send({"more": more}, part)
            await call.end()

    async def list_files(self, path: str = WORKSPACE, depth: int = 2) -> list[FileInfo]:
        if not 1 <= depth <= 64:
            raise InvalidInput(f"depth must be between 1 and 64, not {depth}")
        async with self.call("list", path=path, depth=depth, limit=MAX_LISTED) as call:
            rows = await _rows(call, "items", MAX_LISTED)
            return [FileInfo(str(r[0]), r[1], int(r[2]), int(r[3]), float(r[4])) for r in rows["items"]]

    async def search(self, pattern: str, path: str = WORKSPACE, glob: str | None = None) -> list[SearchHit]:
        async with self.call("search", path=path, pattern=pattern, glob=glob, limit=MAX_HITS, limit_s=SEARCH_S) as call:
            rows = await _rows(call, "items", MAX_HITS)
            return [SearchHit(str(r[0]), int(r[1]), str(r[2])) for r in rows["items"]]

    async def scan(self, base: str | None = None) -> Scan:
        async with self.call(
            "scan",
            timeout_s=300,
            base=base,
            max_files=MAX_TREE_ENTRIES,
            max_bytes=self._max_snapshot_bytes,
            carried_bytes=MAX_CARRIED_BYTES,
        ) as call:
            rows = await _rows(call, "entries", MAX_TREE_ENTRIES)
            end = rows["end"][0]
            try:
                entries = [_tree_entry(row) for row in rows["entries"]]
                removed = [str(row[0]) for row in rows["removed"]]
                skipped = [str(row[0]) for row in rows["skipped"]]
                contents = {entries[index].path: data for index, data in rows["carried"]}
                return Scan(str(end["scan_id"]), bool(end["complete"]), entries, removed, skipped, contents)
            except (KeyError, IndexError, TypeError, ValueError):
                raise call.lost("it sent a scan that cannot be read") from None

    async def read_blobs(self, paths: Sequence[str]) -> AsyncIterator[FileChunk]:
        for batch, encoded in _batches(paths):
            async with self.call("blobs", encoded, timeout_s=120) as call:
                expected, offset = 0, 0
                async for header, payload in call.until_end():
                    position = 0
                    for index, length, state in header.get("parts", ()):
                        if index != expected or not 0 <= length <= len(payload) - position or (state == 2 and offset):
                            raise call.lost("it sent files in an order that was not asked for")
                        data = payload[position : position + length]
                        position += length
                        last = state != 1
                        yield FileChunk(batch[index], offset, data, last=last, missing=state == 2)
                        offset = 0 if last else offset + length
                        expected += last
                if expected != len(batch):
                    raise call.lost("it did not send all files")

    async def mark(
        self, scan_id: str, digest: str, changed: Sequence[TreeEntry] = (), missing: Sequence[str] = ()
    ) -> None:
        rows = [*map(_tree_row, changed), *([path] for path in missing)]
        first, *rest = [encoded for _, encoded in _batches(rows)] or [b"[]"]
        async with self.call("mark", first, scan_id=scan_id, digest=digest, more=bool(rest)) as call:
            for number, encoded in enumerate(rest, 1):
                await call.send({"more": number < len(rest)}, encoded)
            await call.end()

    async def replace_tree(
        self, entries: Sequence[TreeEntry], contents: AsyncIterator[tuple[str, bytes]], digest: str
    ) -> None:
        async with self.call("tree", timeout_s=120, digest=digest) as call:
            for rows, encoded in _batches(map(_tree_row, entries)):
                await call.send({"entries": len(rows)}, encoded)
            index = {entry.path: number for number, entry in enumerate(entries)}
            left = {entry.path: entry.size for entry in entries}
            parts: list[list[int]] = []
            buffer = bytearray()
            async for path, data in contents:
                for start in range(0, len(data), CHUNK):
                    piece = data[start : start + CHUNK]
                    left[path] -= len(piece)
                    parts.append([index[path], len(piece), int(left[path] <= 0)])
                    buffer += piece
                    if len(buffer) >= CHUNK or len(parts) >= 1000:
                        await call.send({"parts": parts}, bytes(buffer))
                        parts, buffer = [], bytearray()
            if parts:
                await call.send({"parts": parts}, bytes(buffer))
            await call.send({"done": 1})
            await call.end()

    async def renew(self, lease_s: float) -> None:
        if lease_s <= 0:
            raise InvalidInput(f"lease_s must be positive, not {lease_s}")
        async with self.call("renew", lease_s=lease_s) as call:
            await call.end()

    async def ping(self) -> None:
        async with self.call("ping", timeout_s=10) as call:
            await call.end()


_PING_EVERY_S: Final = 5.0
"""Between looks at an agent that has a command running; it answers within 10 s or counts as lost."""


def _check(request: ExecRequest) -> None:
    if not _EXEC_ID.fullmatch(request.exec_id):
        raise InvalidInput(f"exec_id must match {_EXEC_ID.pattern}, not {request.exec_id!r}")
    words = [request.command] if isinstance(request.command, str) else list(request.command)
    if not words:
        raise InvalidInput("a command names no program")
    if any("\0" in word for word in words) or any("\0" in text for pair in request.env.items() for text in pair):
        raise InvalidInput("a command and its environment cannot hold NUL bytes")
    if any(not name or "=" in name for name in request.env):
        raise InvalidInput("names of environment variables cannot be empty or hold '='")
    limit = MAX_COMMAND if isinstance(request.command, str) else 128 * 1024 - 1
    if any(len(word.encode("utf-8", "surrogateescape")) > limit for word in words):
        raise InvalidInput(f"a command can be {limit} bytes long at most; write longer ones to a file and run that")
    if request.timeout_s <= 0:
        raise InvalidInput(f"timeout_s must be positive, not {request.timeout_s}")
    if not 2 <= request.output_limit <= MAX_OUTPUT_LIMIT:
        raise InvalidInput(f"output_limit must be between 2 and {MAX_OUTPUT_LIMIT}, not {request.output_limit}")
    if len(request.stdin) > MAX_STDIN:
        raise InvalidInput(f"stdin can be {MAX_STDIN} bytes long at most; write more to a file and redirect it")


def _exec_result(exec_id: str, header: dict[str, Any], kept: bytes) -> ExecResult:
    head, total = int(header["head"]), int(header["total"])
    left_out = total - len(kept)
    output = kept if left_out <= 0 else kept[:head] + marker(left_out) + kept[head:]
    exit_code, signal = header.get("exit_code"), header.get("signal")
    return ExecResult(
        exec_id=exec_id,
        exit_code=None if exit_code is None else int(exit_code),
        signal=None if signal is None else int(signal),
        timed_out=bool(header["timed_out"]),
        oom_killed=bool(header["oom"]),
        output=output,
        total_bytes=total,
        truncated=left_out > 0,
        duration_s=float(header["duration"]),
        running=bool(header["running"]),
        reattached=bool(header["reattached"]),
        pids_hit=bool(header["pids"]),
        disk_full=bool(header["disk"]),
        leftovers=int(header["leftovers"]),
    )


async def _rows(call: Call, name: str, limit: int) -> dict[str, list[Any]]:
    """Rows of JSON arrays by the name of their frames, and the closing header under ``end``."""
    rows: dict[str, list[Any]] = {name: [], "removed": [], "skipped": [], "carried": [], "end": []}
    async for header, payload in call.until_end():
        if "end" in header:
            rows["end"].append(header)
            break
        if "carried" in header:
            rows["carried"] = _carried(call, header["carried"], payload)
            continue
        for known, collected in rows.items():
            if known in header:
                try:
                    collected.extend(json.loads(payload))
                except (ValueError, TypeError):
                    raise call.lost("it sent a list that cannot be read") from None
                if len(collected) > limit:
                    raise call.lost("it sent a longer list than was asked for")
    return rows


def _carried(call: Call, parts: Any, payload: bytes) -> list[tuple[int, bytes]]:
    """Contents that came with a scan, each with the place of its file among the entries."""
    try:
        contents, position = [], 0
        for index, length in parts:
            if index < 0 or not 0 <= length <= len(payload) - position:
                raise ValueError(index)
            contents.append((index, payload[position : position + length]))
            position += length
        return contents
    except (TypeError, ValueError):
        raise call.lost("it sent contents that cannot be read") from None


def _tree_entry(row: list[Any]) -> TreeEntry:
    path, kind, mode, size, content = row
    path, content, kind = str(path), str(content), _KINDS[kind]
    if kind == "file" and not _DIGEST.fullmatch(content):
        raise ValueError(path)
    return TreeEntry(
        path=path,
        kind=kind,  # type: ignore[arg-type]  # one of the values of _KINDS
        mode=int(mode) & 0o777,
        size=int(size),
        sha256=content if kind == "file" else "",
        target=content if kind == "symlink" else "",
    )
