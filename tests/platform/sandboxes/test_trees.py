"""Trees come out of a sandbox and back as they were, whatever their names take in a frame."""

from collections.abc import AsyncIterator

import pytest

from journeyman.platform.kit.errors import InvalidInput
from journeyman.platform.sandboxes.port import Sandbox, Scan, TreeEntry
from support.sandboxes import shell

TREES = {
    "long names in another script": "for i in range(900): open(f'{i:04}' + '\\u6587' * 80, 'w').write(str(i))",
    "deep directories of long names": (
        "for i in range(15):\n    os.mkdir('\\u6587' * 80); os.chdir('\\u6587' * 80); open('file', 'w').write(str(i))"
    ),
    "1,500 levels": "for i in range(1500):\n    os.mkdir('d'); os.chdir('d')\nopen('file', 'w').write('deep')",
    "links with long targets": "for i in range(1000): os.symlink('\\u6587' * 1300, f'link{i}')",
    "bytes that are no text": "for i in range(1, 256):\n    i == 47 or open(bytes([i]) * 200 + b'x', 'w').write(str(i))",
    "modes": "for i in range(512): open(f'{i:03o}', 'w').write('x'); os.chmod(f'{i:03o}', i)",
}


def by_path(scan: Scan) -> list[TreeEntry]:
    return sorted(scan.entries, key=lambda entry: entry.path)


@pytest.mark.parametrize("code", TREES.values(), ids=TREES)
async def test_a_tree_comes_back_as_it_was(sandbox: Sandbox, code: str):
    await sandbox.write_file("/tmp/make.py", f"import os\nos.chdir('/workspace')\n{code}\n".encode())
    made = await shell(sandbox, "python3 /tmp/make.py")
    assert made.exit_code == 0, made.output
    first = await sandbox.scan()
    assert not first.skipped
    assert len(first.entries) >= 15
    files = [entry for entry in by_path(first) if entry.kind == "file" and entry.size]
    contents: dict[str, bytes] = {}
    async for chunk in sandbox.read_blobs([entry.path for entry in files]):
        assert not chunk.missing
        contents[chunk.path] = contents.get(chunk.path, b"") + chunk.data

    async def stream() -> AsyncIterator[tuple[str, bytes]]:
        for entry in files:
            yield entry.path, contents[entry.path]

    await sandbox.replace_tree(by_path(first), stream(), "1" * 64)
    again = await sandbox.scan()
    assert by_path(again) == by_path(first)
    await sandbox.mark(again.scan_id, "2" * 64, by_path(again), [entry.path for entry in files[:10]])
    corrected = await sandbox.scan("2" * 64)
    assert {entry.path for entry in corrected.entries} == {entry.path for entry in files[:10]}


async def test_a_workspace_without_permissions_stays_usable(sandbox: Sandbox):
    await shell(sandbox, "echo kept > file; chmod 0 /workspace /artifacts")
    assert await sandbox.read_file("/workspace/file") == b"kept\n"
    await shell(sandbox, "chmod 0 /workspace")
    assert (await shell(sandbox, "cat file")).output == b"kept\n"


async def test_a_very_long_line_counts_once_in_a_search(sandbox: Sandbox):
    await sandbox.write_file("/workspace/file", b"x" * 200_000 + b"\n\xe2\x80\xa8 two\nneedle\n")
    assert [(hit.line, hit.text) for hit in await sandbox.search("needle")] == [(3, "needle")]


@pytest.mark.parametrize("size", [131_071, 131_072, 1024 * 1024])
async def test_a_long_command_runs(sandbox: Sandbox, size: int):
    start, end = "cat; : '", "'; echo done"
    command = start + "文" * ((size - len(start + end)) // 3) + end
    result = await shell(sandbox, command, stdin=b"from stdin\n")
    assert (result.exit_code, result.output) == (0, b"from stdin\ndone\n")


async def test_a_command_over_the_limit_is_refused(sandbox: Sandbox):
    with pytest.raises(InvalidInput, match="1048576 bytes"):
        await shell(sandbox, ":" * (1024 * 1024 + 1))
