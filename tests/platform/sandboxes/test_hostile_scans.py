"""Scans as no agent of ours sends them."""

import asyncio
from pathlib import Path

import pytest

from journeyman.platform.sandboxes.errors import SandboxLost
from journeyman.platform.sandboxes.remote import AgentSandbox
from journeyman.platform.sandboxes.wire import pack

ENTRIES = b'[["workspace/f","f",420,3,"' + b"0" * 64 + b'"]]'


async def scan_of(path: Path, carried: object, payload: bytes) -> dict[str, bytes]:
    """The contents of a scan from an agent that answers with these."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(pack({"entries": 1}, ENTRIES))
        writer.write(pack({"carried": carried}, payload))
        writer.write(pack({"end": 1, "scan_id": "scan-1", "complete": True}))
        await writer.drain()
        writer.close()

    async with await asyncio.start_unix_server(answer, path):
        sandbox = AgentSandbox(
            "sbx_hostile", lambda: asyncio.open_unix_connection(path), "token", max_snapshot_bytes=1000
        )
        return (await sandbox.scan()).contents


async def test_contents_come_with_their_entry(tmp_path: Path) -> None:
    assert await scan_of(tmp_path / "socket", [[0, 3]], b"abc") == {"workspace/f": b"abc"}


@pytest.mark.parametrize(
    "carried",
    [
        [[0, 4]],
        [[1, 3]],
        [[-1, 3]],
        [[0, -1]],
        [[0, 2], [0, 2]],
        [[0]],
        [["0", 3]],
        [[0.5, 3]],
        7,
        None,
        "ab",
        {"a": 1},
    ],
)
async def test_contents_of_another_shape_count_as_a_lost_sandbox(tmp_path: Path, carried: object) -> None:
    with pytest.raises(SandboxLost, match="cannot be read"):
        await scan_of(tmp_path / "socket", carried, b"abc")
