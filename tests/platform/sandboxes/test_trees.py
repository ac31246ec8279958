"""Trees come out of a sandbox and back as they were, whatever their names take in a frame."""

from collections.abc import AsyncIterator

import pytest

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
