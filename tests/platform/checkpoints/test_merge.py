"""Three-way merges of snapshots: what comes of every kind of change on two sides."""

from collections.abc import Awaitable, Callable

import pytest

from journeyman.platform.checkpoints.merge import MAX_TEXT, Merged, merge
from journeyman.platform.checkpoints.packs import PackReader
from journeyman.platform.checkpoints.snapshots import SnapshotStore
from journeyman.platform.kit.errors import NotFound
from journeyman.platform.kit.ids import new_id
from journeyman.platform.kit.s3 import S3ObjectStore
from support.trees import Directory, File, Link, Node, Tree, load, store

TEXT = b"".join(b"line %d\n" % number for number in range(1, 21))

Merge = Callable[[Tree, Tree, Tree], Awaitable[tuple[Merged, dict[str, Node]]]]


def edited(line: int, text: bytes = b"changed") -> bytes:
    return TEXT.replace(b"line %d\n" % line, text + b"\n")


@pytest.fixture
def merged(snapshots: SnapshotStore, project_id: str) -> Merge:
    """Merges trees under the labels ``left`` and ``right``."""

    async def run(base: Tree, ours: Tree, theirs: Tree) -> tuple[Merged, dict[str, Node]]:
        digests = [await store(snapshots, project_id, tree) for tree in (base, ours, theirs)]
        result = await merge(
            snapshots,
            project_id,
            base=digests[0],
            ours=digests[1],
            theirs=digests[2],
            ours_label="left",
            theirs_label="right",
        )
        return result, await load(snapshots, project_id, result.snapshot.digest)

    return run


def kinds(result: Merged) -> dict[str, str]:
    return {conflict.path.removeprefix("workspace/"): conflict.kind for conflict in result.conflicts}


async def test_changes_of_both_sides_come_together(merged: Merge):
    base = {"a.py": TEXT, "both.py": TEXT, "gone": b"x\n", "kept": b"k\n", "dir/old": b"o\n"}
    ours = {**base, "a.py": edited(2), "both.py": edited(2), "new/ours": b"1\n"}
    theirs = {"a.py": TEXT, "both.py": edited(19), "kept": b"k\n", "new/theirs": b"2\n", "artifacts/report": b"r\n"}
    result, tree = await merged(base, ours, theirs)
    assert result.conflicts == ()
    assert result.snapshot.changed
    assert tree == {
        "a.py": edited(2),
        "both.py": edited(2).replace(b"line 19\n", b"changed\n"),
        "kept": b"k\n",
        "new/ours": b"1\n",
        "new/theirs": b"2\n",
        "artifacts/report": b"r\n",
    }


async def test_fast_paths(snapshots: SnapshotStore, project_id: str, object_store: S3ObjectStore):
    a, b = [await store(snapshots, project_id, {"f": data}) for data in (b"1\n", b"2\n")]
    keys = await object_store.list_keys(project_id)
    labels = {"ours_label": "left", "theirs_label": "right"}
    for base, ours, theirs, expected in ((a, a, b, b), (a, b, a, b), (a, b, b, b), (a, a, a, a)):
        result = await merge(snapshots, project_id, base=base, ours=ours, theirs=theirs, **labels)
        assert (result.snapshot.digest, result.conflicts) == (expected, ())
        assert result.snapshot.changed == (expected != ours)
        assert (result.snapshot.files, result.snapshot.bytes, result.snapshot.new_bytes) == (1, 2, 0)
    assert await object_store.list_keys(project_id) == keys


async def test_same_change_on_both_sides_is_no_conflict(merged: Merge):
    base = {"f": TEXT, "gone": b"x\n", "link": Link("f")}
    same = {"f": edited(3), "new": b"\0\1", "link": Link("new")}
    result, tree = await merged(base, {**same, "ours": b"1\n"}, {**same, "theirs": b"2\n"})
    assert result.conflicts == ()
    assert tree == {**same, "ours": b"1\n", "theirs": b"2\n"}


async def test_same_lines_changed(merged: Merge):
    result, tree = await merged({"f": TEXT}, {"f": edited(5, b"mine")}, {"f": edited(5, b"yours")})
    [conflict] = result.conflicts
    assert (conflict.path, conflict.kind, conflict.markers) == ("workspace/f", "content", True)
    assert conflict.base is not None
    assert conflict.base.size == len(TEXT)
    marked = b"<<<<<<< left\nmine\n=======\nyours\n>>>>>>> right\n"
    assert tree == {"f": TEXT.replace(b"line 5\n", marked)}


async def test_every_byte_of_text_is_kept(merged: Merge):
    """Latin-1, stray continuation bytes, CRLF, no newline at the end."""
    base = b"caf\xe9\r\n" + TEXT.replace(b"\n", b"\r\n") + b"\xff\xfe end"
    ours, theirs = base.replace(b"line 2\r", b"\x80\xbf\r"), base.replace(b"line 19\r", "ü€\U0001f600\r".encode())
    result, tree = await merged({"f": base}, {"f": ours}, {"f": theirs})
    assert result.conflicts == ()
    assert tree["f"] == ours.replace(b"line 19\r", "ü€\U0001f600\r".encode())


async def test_labels_may_be_any_text(snapshots: SnapshotStore, project_id: str):
    base, ours, theirs = [await store(snapshots, project_id, {"f": data}) for data in (b"a\n", b"b\n", b"c\n")]
    result = await merge(
        snapshots, project_id, base=base, ours=ours, theirs=theirs, ours_label="Löser/1", theirs_label="two\nlines"
    )
    tree = await load(snapshots, project_id, result.snapshot.digest)
    assert tree["f"] == "<<<<<<< Löser/1\nb\n=======\nc\n>>>>>>> two lines\n".encode()


async def test_both_added(merged: Merge):
    result, tree = await merged({}, {"f": b"top\nmine\n"}, {"f": b"top\nyours\n"})
    assert kinds(result) == {"f": "add/add"}
    assert result.conflicts[0].markers
    assert tree == {"f": b"top\n<<<<<<< left\nmine\n=======\nyours\n>>>>>>> right\n"}


@pytest.mark.parametrize("deleted_in", ["ours", "theirs"])
async def test_deleted_and_changed(merged: Merge, deleted_in: str):
    changed = {"d/f": edited(1), "k": b"k\n"}
    sides = ({"k": b"k\n"}, changed) if deleted_in == "ours" else (changed, {"k": b"k\n"})
    result, tree = await merged({"d/f": TEXT, "k": b"k\n"}, *sides)
    [conflict] = result.conflicts
    assert (conflict.path, conflict.kind, conflict.markers, conflict.aside) == (
        "workspace/d/f",
        "delete/modify",
        False,
        None,
    )
    assert getattr(conflict, deleted_in) is None
    assert tree == changed


async def test_binary(merged: Merge):
    result, tree = await merged(
        {"f": b"\0base"}, {"f": b"\0mine", "new": b"\0m"}, {"f": b"\0yours", "new": File(b"\0y", 0o755)}
    )
    assert kinds(result) == {"f": "binary", "new": "add/add"}
    assert [(c.markers, c.aside) for c in result.conflicts] == [
        (False, "workspace/f~right"),
        (False, "workspace/new~right"),
    ]
    assert tree == {
        "f": b"\0mine",
        "f~right": b"\0yours",
        "new": File(b"\0m", 0o755),
        "new~right": File(b"\0y", 0o755),
    }


async def test_text_on_one_side_and_binary_on_the_other(merged: Merge):
    result, tree = await merged({"f": b"a\n"}, {"f": b"b\n"}, {"f": b"c\0\n"})
    assert kinds(result) == {"f": "binary"}
    assert tree == {"f": b"b\n", "f~right": b"c\0\n"}


async def test_too_large_for_a_merge(merged: Merge):
    big = b"x" * MAX_TEXT
    result, tree = await merged({"f": b"a\n"}, {"f": big + b"1"}, {"f": b"b\n"})
    assert kinds(result) == {"f": "binary"}
    assert tree == {"f": big + b"1", "f~right": b"b\n"}


async def test_type_and_links(merged: Merge):
    result, tree = await merged(
        {"f": b"1\n", "l": Link("f")}, {"f": Link("x"), "l": Link("ours")}, {"f": b"2\n", "l": Link("theirs")}
    )
    assert kinds(result) == {"f": "type", "l": "symlink"}
    assert tree == {"f": Link("x"), "f~right": b"2\n", "l": Link("ours"), "l~right": Link("theirs")}


async def test_modes_are_merged_bit_by_bit(merged: Merge):
    base = {"x": TEXT, "y": b"1\n", "z": b"1\n"}
    ours = {"x": File(TEXT, 0o755), "y": File(b"1\n", 0o755), "z": b"2\n", "new": File(b"#!/bin/sh\n", 0o755)}
    theirs = {"x": edited(4), "y": File(b"1\n", 0o600), "z": File(b"1\n", 0o600), "new": b"#!/bin/sh\n"}
    result, tree = await merged(base, ours, theirs)
    assert result.conflicts == ()
    assert tree == {
        "x": File(edited(4), 0o755),
        "y": File(b"1\n", 0o711),
        "z": File(b"2\n", 0o600),
        "new": File(b"#!/bin/sh\n", 0o755),
    }


async def test_file_where_the_other_made_a_directory(merged: Merge):
    result, tree = await merged({}, {"p": File(b"file\n", 0o755)}, {"p/x": b"x\n"})
    assert kinds(result) == {"p": "directory/file"}
    assert tree == {"p~left": File(b"file\n", 0o755), "p/x": b"x\n"}
    result, tree = await merged({}, {"p/x": b"x\n"}, {"p": Link("y")})
    assert result.conflicts[0].aside == "workspace/p~right"
    assert tree == {"p~right": Link("y"), "p/x": b"x\n"}


async def test_directory_replaced_by_a_file(merged: Merge):
    base = {"p/x": b"x\n", "p/y": b"y\n"}
    result, tree = await merged(base, {"p": b"file\n"}, {**base, "other": b"o\n"})
    assert result.conflicts == ()
    assert tree == {"p": b"file\n", "other": b"o\n"}
    result, tree = await merged(base, {"p": b"file\n"}, {**base, "p/x": b"changed\n"})
    assert kinds(result) == {"p": "directory/file", "p/x": "delete/modify"}
    assert tree == {"p~left": b"file\n", "p/x": b"changed\n"}


async def test_file_replaced_by_an_empty_directory(merged: Merge, snapshots: SnapshotStore, project_id: str):
    result, tree = await merged({"p": b"1\n"}, {"p": b"2\n"}, {"p": Directory(0o700)})
    assert [conflict.kind for conflict in result.conflicts] == ["directory/file"]
    assert tree == {"p~left": b"2\n"}
    everything = await load(snapshots, project_id, result.snapshot.digest, directories=True)
    assert everything["p"] == Directory(0o700)


async def test_a_name_that_is_taken_is_not_overwritten(merged: Merge):
    result, tree = await merged(
        {"f": b"\0"}, {"f": b"\0o", "f~right": b"mine\n"}, {"f": b"\0t", "f~right_0": b"theirs\n"}
    )
    assert result.conflicts[0].aside == "workspace/f~right_1"
    assert tree == {"f": b"\0o", "f~right": b"mine\n", "f~right_0": b"theirs\n", "f~right_1": b"\0t"}


async def test_long_names_are_cut(merged: Merge):
    name = "ü" * 127
    result, tree = await merged({name: b"\0"}, {name: b"\0o"}, {name: b"\0t"})
    assert tree[name] == b"\0o"
    aside = result.conflicts[0].aside
    assert aside is not None
    assert aside.endswith("~right")
    assert tree[aside.removeprefix("workspace/")] == b"\0t"


async def test_directories(merged: Merge, snapshots: SnapshotStore, project_id: str):
    base = {"gone": Directory(), "mode": Directory(), "filled": Directory(0o700), "empty": Directory()}
    ours = {
        "gone": Directory(),
        "mode": Directory(0o700),
        "filled": Directory(0o700),
        "filled/x": b"x\n",
        "empty": Directory(),
    }
    theirs = {"mode": Directory(), "empty": Directory(), "new": Directory(0o711)}
    result, _ = await merged(base, ours, theirs)
    assert result.conflicts == ()
    assert await load(snapshots, project_id, result.snapshot.digest, directories=True) == {
        "mode": Directory(0o700),
        "filled": Directory(0o700),
        "filled/x": b"x\n",
        "empty": Directory(),
        "new": Directory(0o711),
    }


async def test_names_are_bytes(merged: Merge):
    odd = b"\xff\xfe\nname".decode("utf-8", "surrogateescape")
    result, tree = await merged({odd: TEXT, "k": b"1\n"}, {odd: edited(1), "k": b"1\n"}, {odd: edited(20), "k": b"2\n"})
    assert result.conflicts == ()
    assert tree == {odd: edited(1).replace(b"line 20\n", b"changed\n"), "k": b"2\n"}
    result, tree = await merged({odd: b"\0"}, {odd: b"\0o"}, {odd: b"\0t"})
    assert tree == {odd: b"\0o", f"{odd}~right": b"\0t"}


async def test_renames_are_followed(merged: Merge):
    """Exact ones, and ones with a few changes; only where the other side changed the file."""
    base = {"a.py": TEXT, "b.py": TEXT + b"end\n", "same": b"s\n" * 9}
    ours = {"a.py": edited(2), "b.py": edited(2) + b"end\n", "same": b"s\n" * 9}
    theirs = {"src/a.py": TEXT, "src/b.py": edited(12) + b"end\n", "moved": b"s\n" * 9}
    result, tree = await merged(base, ours, theirs)
    assert result.conflicts == ()
    expected = {
        "src/a.py": edited(2),
        "src/b.py": edited(2).replace(b"line 12\n", b"changed\n") + b"end\n",
        "moved": b"s\n" * 9,
    }
    assert tree == expected
    result, tree = await merged(base, theirs, ours)
    assert result.conflicts == ()
    assert tree == expected


async def test_conflict_in_a_renamed_file(merged: Merge):
    result, tree = await merged({"a": TEXT}, {"a": edited(2, b"mine")}, {"b": edited(2, b"yours")})
    [conflict] = result.conflicts
    assert (conflict.path, conflict.kind, conflict.renamed_from) == ("workspace/b", "content", "workspace/a")
    assert list(tree) == ["b"]
    assert b"<<<<<<< left\nmine\n=======\nyours\n>>>>>>> right\n" in tree["b"]  # type: ignore[operator]  # it is a file


async def test_unlike_files_are_no_rename(merged: Merge):
    result, tree = await merged({"a": TEXT}, {"a": edited(2)}, {"b": b"something else\n" * 20})
    assert kinds(result) == {"a": "delete/modify"}
    assert tree == {"a": edited(2), "b": b"something else\n" * 20}


async def test_a_repository_is_not_merged_as_text(merged: Merge):
    """Both sides made a commit: one repository that holds together, with the objects of both, and all their files."""
    base = {".git/HEAD": b"ref: refs/heads/main\n", ".git/refs/heads/main": b"0\n", ".git/index": b"0", "f": TEXT}
    ours = {**base, ".git/refs/heads/main": b"1\n", ".git/index": b"1", ".git/objects/aa/1": b"\1", "f": edited(1)}
    theirs = {**base, ".git/refs/heads/main": b"2\n", ".git/index": b"2", ".git/objects/bb/2": b"\2", "f": edited(20)}
    theirs[".git/refs/heads/other"] = b"3\n"
    result, tree = await merged(base, ours, theirs)
    assert result.conflicts == ()
    assert tree == {**ours, ".git/objects/bb/2": b"\2", "f": edited(1).replace(b"line 20\n", b"changed\n")}
    # Only theirs made one; ours has but looked at the repository.
    result, tree = await merged(base, {**base, ".git/index": b"refreshed", "g": b"g\n"}, theirs)
    assert result.conflicts == ()
    assert tree == {**theirs, "g": b"g\n"}


async def test_generated_files(merged: Merge):
    base = {"__pycache__/m.pyc": b"\0", "node_modules/.lock": b"a\n", "node_modules/x/i.js": b"a\n"}
    ours = {"__pycache__/m.pyc": b"\0o", "node_modules/.lock": b"b\n", "node_modules/x/i.js": b"b\n"}
    theirs = {
        "__pycache__/m.pyc": b"\0t",
        "node_modules/.lock": b"c\n",
        "node_modules/x/i.js": b"c\n",
        "node_modules/y/i.js": b"y\n",
    }
    result, tree = await merged(base, ours, theirs)
    assert kinds(result) == {"node_modules": "generated"}
    assert tree == {**ours, "node_modules/y/i.js": b"y\n"}


async def test_only_what_must_be_merged_is_read(
    snapshots: SnapshotStore, project_id: str, object_store: S3ObjectStore, monkeypatch: pytest.MonkeyPatch
):
    base = {f"d/{number}": b"%d\n" % number for number in range(50)} | {"f": TEXT}
    trees = [base, {**base, "f": edited(1), "d/1": b"x\n"}, {**base, "f": edited(20), "d/2": b"y\n"}]
    digests = [await store(snapshots, project_id, tree) for tree in trees]
    read: list[str] = []
    stream = PackReader.stream

    def counting(self, blobs):
        read.extend(name for name, *_ in blobs)
        return stream(self, blobs)

    monkeypatch.setattr(PackReader, "stream", counting)
    keys = set(await object_store.list_keys(project_id))
    result = await merge(
        snapshots,
        project_id,
        base=digests[0],
        ours=digests[1],
        theirs=digests[2],
        ours_label="left",
        theirs_label="right",
    )
    assert len(read) == 3
    assert 0 < result.snapshot.new_bytes <= len(TEXT) + 20
    # One manifest, which holds the one new content itself.
    assert len(set(await object_store.list_keys(project_id)) - keys) == 1


async def test_unknown_snapshot(snapshots: SnapshotStore, project_id: str):
    known = await store(snapshots, project_id, {"f": b"1\n"})
    foreign = await store(snapshots, new_id("project"), {"f": b"2\n"})
    with pytest.raises(NotFound):
        await merge(
            snapshots, project_id, base=known, ours=known, theirs=foreign, ours_label="left", theirs_label="right"
        )
