"""What changed between two snapshots, as patches that ``git apply`` takes in the workspace's root.

Text is everything without a NUL in its first 8,000 bytes, as for git. Patches keep every byte: text that is not UTF-8
is there with ``surrogateescape``. Files of tools that nobody wants to read (``.git``, caches) are left out when they are
new; binary and very large files are listed without a patch.
"""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from journeyman.platform.checkpoints.manifest import path_bytes
from journeyman.platform.checkpoints.paths import ROOT
from journeyman.platform.sandboxes.port import MIB, TreeEntry

MAX_TEXT: Final = 4 * MIB
_MAX_COMPARED: Final = 4_000_000
"""Product of the numbers of lines up to which lines are matched; beyond it, the part that differs is replaced whole."""
_CONTEXT: Final = 3
GENERATED: Final = frozenset(
    {
        "__pycache__",
        ".pytest_cache",
        ".mypy_cache",
        ".ruff_cache",
        ".hypothesis",
        ".venv",
        "node_modules",
    }
)

ChangeKind = Literal["added", "modified", "deleted"]


@dataclass(frozen=True, slots=True)
class FileChange:
    """``path`` is the path in the snapshot (``workspace/…``); those in ``patch`` are relative to the workspace."""

    path: str
    kind: ChangeKind
    binary: bool
    """No patch can show it: not text, or too large."""
    patch: str


@dataclass(frozen=True, slots=True)
class Pair:
    old: TreeEntry | None
    new: TreeEntry | None

    @property
    def path(self) -> str:
        entry = self.new or self.old
        assert entry is not None
        return entry.path

    @property
    def kind(self) -> ChangeKind:
        return "added" if self.old is None else "deleted" if self.new is None else "modified"


def changed_pairs(old: Mapping[str, TreeEntry], new: Mapping[str, TreeEntry]) -> list[Pair]:
    """Files and links that differ in what git keeps of them, by path."""
    pairs = []
    for path in sorted(old.keys() | new.keys(), key=path_bytes):
        pair = Pair(_leaf(old.get(path)), _leaf(new.get(path)))
        if _same(pair) or _unwanted(path, pair):
            continue
        pairs.append(pair)
    return pairs


def _leaf(entry: TreeEntry | None) -> TreeEntry | None:
    return None if entry is None or entry.kind == "directory" else entry


def _same(pair: Pair) -> bool:
    if pair.old is None or pair.new is None:
        return pair.old is pair.new
    return (
        git_mode(pair.old) == git_mode(pair.new)
        and pair.old.sha256 == pair.new.sha256
        and pair.old.target == pair.new.target
    )


def _unwanted(path: str, pair: Pair) -> bool:
    names = path.split("/")
    return ".git" in names or (pair.old is None and not GENERATED.isdisjoint(names))


def git_mode(entry: TreeEntry) -> str:
    if entry.kind == "symlink":
        return "120000"
    return "100755" if entry.mode & 0o100 else "100644"


def changes(pairs: list[Pair], texts: Mapping[str, bytes]) -> list[FileChange]:
    """``texts``: content by SHA-256, of all files up to ``MAX_TEXT``."""
    return [_change(pair, texts) for pair in pairs]


def _change(pair: Pair, texts: Mapping[str, bytes]) -> FileChange:
    old, new = _content(pair.old, texts), _content(pair.new, texts)
    if old is None or new is None:
        same = pair.old is not None and pair.new is not None and pair.old.sha256 == pair.new.sha256
        # A change of the mode alone needs no content.
        return FileChange(pair.path, pair.kind, binary=True, patch=_patch(pair, b"", b"") if same else "")
    return FileChange(pair.path, pair.kind, binary=False, patch=_patch(pair, old, new))


def _content(entry: TreeEntry | None, texts: Mapping[str, bytes]) -> bytes | None:
    """Text of one side; ``None`` when it is not text, or too large."""
    if entry is None:
        return b""
    if entry.kind == "symlink":
        return path_bytes(entry.target)
    if entry.size > MAX_TEXT:
        return None
    data = texts[entry.sha256] if entry.size else b""
    return None if b"\0" in data[:8000] else data


def _patch(pair: Pair, old: bytes, new: bytes) -> str:
    a, b = pair.old, pair.new
    if a is not None and b is not None and a.kind != b.kind:  # git knows no other way to turn a file into a link
        return _patch(Pair(a, None), old, b"") + _patch(Pair(None, b), b"", new)
    path = path_bytes(pair.path.removeprefix(ROOT))
    name_a, name_b = quoted(b"a/" + path), quoted(b"b/" + path)
    lines = [f"diff --git {name_a} {name_b}\n".encode()]
    if a is None and b is not None:
        lines.append(f"new file mode {git_mode(b)}\n".encode())
    elif b is None and a is not None:
        lines.append(f"deleted file mode {git_mode(a)}\n".encode())
    elif a is not None and b is not None and git_mode(a) != git_mode(b):
        lines += [f"old mode {git_mode(a)}\n".encode(), f"new mode {git_mode(b)}\n".encode()]
    if old != new:
        lines.append(b"--- " + (b"/dev/null" if a is None else _with_tab(name_a)) + b"\n")
        lines.append(b"+++ " + (b"/dev/null" if b is None else _with_tab(name_b)) + b"\n")
        lines += _hunks(_lines(old), _lines(new))
    return b"".join(lines).decode("utf-8", "surrogateescape")


def _with_tab(name: str) -> bytes:
    """Git ends a name that holds a space with a tab."""
    return name.encode() + (b"\t" if " " in name and not name.startswith('"') else b"")


def quoted(name: bytes) -> str:
    """A path as git writes it: in C style as soon as it holds anything but printable ASCII, or a quote."""
    if all(0x20 <= byte < 0x7F and byte not in b'"\\' for byte in name):
        return name.decode("ascii")
    escapes = {0x07: "a", 0x08: "b", 0x09: "t", 0x0A: "n", 0x0B: "v", 0x0C: "f", 0x0D: "r", 0x22: '"', 0x5C: "\\"}
    text = "".join(
        f"\\{escapes[byte]}" if byte in escapes else chr(byte) if 0x20 <= byte < 0x7F else f"\\{byte:03o}"
        for byte in name
    )
    return f'"{text}"'


def _lines(data: bytes) -> list[bytes]:
    """Lines with their newline; only LF ends one."""
    lines = data.split(b"\n")
    whole = [line + b"\n" for line in lines[:-1]]
    return [*whole, lines[-1]] if lines[-1] else whole


_Edit = tuple[int, int, int, int]
"""Replace ``old[i1:i2]`` by ``new[j1:j2]``."""


def _edits(old: list[bytes], new: list[bytes]) -> list[_Edit]:
    low = 0
    while low < min(len(old), len(new)) and old[low] == new[low]:
        low += 1
    high = 0
    while high < min(len(old), len(new)) - low and old[-1 - high] == new[-1 - high]:
        high += 1
    middle_old, middle_new = old[low : len(old) - high], new[low : len(new) - high]
    if len(middle_old) * len(middle_new) > _MAX_COMPARED:
        return [(low, len(old) - high, low, len(new) - high)]
    matcher = difflib.SequenceMatcher(None, middle_old, middle_new, autojunk=False)
    return [(i1 + low, i2 + low, j1 + low, j2 + low) for tag, i1, i2, j1, j2 in matcher.get_opcodes() if tag != "equal"]


def _hunks(old: list[bytes], new: list[bytes]) -> Iterator[bytes]:
    groups: list[list[_Edit]] = []
    for edit in _edits(old, new):
        if groups and edit[0] - groups[-1][-1][1] <= 2 * _CONTEXT:
            groups[-1].append(edit)
        else:
            groups.append([edit])
    for group in groups:
        first, last = group[0], group[-1]
        before = min(_CONTEXT, first[0])
        after = min(_CONTEXT, len(old) - last[1])
        start_old, end_old = first[0] - before, last[1] + after
        start_new, end_new = first[2] - before, last[3] + after
        yield f"@@ -{_range(start_old, end_old)} +{_range(start_new, end_new)} @@\n".encode()
        position = start_old
        for i1, i2, j1, j2 in group:
            yield from (_line(b" ", line) for line in old[position:i1])
            yield from (_line(b"-", line) for line in old[i1:i2])
            yield from (_line(b"+", line) for line in new[j1:j2])
            position = i2
        yield from (_line(b" ", line) for line in old[position:end_old])


def _range(start: int, end: int) -> str:
    length = end - start
    return f"{start + 1 if length else start},{length}"


def _line(sign: bytes, line: bytes) -> bytes:
    return sign + line + (b"" if line.endswith(b"\n") else b"\n\\ No newline at end of file\n")
