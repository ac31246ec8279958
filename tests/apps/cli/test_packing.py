import io
import os
import tarfile
from pathlib import Path

import pytest

from journeyman.apps.cli import packing
from journeyman.apps.exits import CommandError


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "src").mkdir(parents=True)
    (root / "src" / "main.py").write_text("print('hello')\n")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o751)
    (root / "link").symlink_to("src/main.py")
    (root / "src" / "up").symlink_to("../run.sh")
    (root / ".git").mkdir()
    (root / ".git" / "config").write_text("secret")
    (root / "empty").mkdir()
    return root


def content(packed: packing.Packed) -> bytes:
    with packed.file:
        return packed.file.read()


def members(packed: packing.Packed) -> dict[str, tarfile.TarInfo]:
    with packed.file, tarfile.open(fileobj=io.BytesIO(packed.file.read())) as archive:
        return {entry.name: entry for entry in archive}


def test_the_same_files_give_the_same_bytes(tree: Path) -> None:
    first = content(packing.pack(tree))
    os.utime(tree / "run.sh", (1, 1))
    (tree / "src" / "main.py").chmod(0o600)
    assert content(packing.pack(tree)) == first


def test_links_modes_and_empty_directories(tree: Path) -> None:
    packed = packing.pack(tree)
    assert packed.files == 2
    assert packed.notes == [".git is left out; --include-git sends the history along"]
    found = members(packed)
    assert sorted(found) == ["empty", "link", "run.sh", "src", "src/main.py", "src/up"]
    assert found["link"].issym()
    assert found["link"].linkname == "src/main.py"
    assert found["run.sh"].mode == 0o755
    assert found["src/main.py"].mode == 0o644
    assert {entry.uid for entry in found.values()} == {0}


def test_git_can_come_along_and_patterns_stay_out(tree: Path) -> None:
    found = members(packing.pack(tree, include_git=True, exclude=["*.sh", "src/up"]))
    assert ".git/config" in found
    assert "run.sh" not in found
    assert "src/up" not in found


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "../../x", "src/../../x"])
def test_links_that_lead_out_are_refused_by_name(tree: Path, target: str) -> None:
    (tree / "bad").symlink_to(target)
    with pytest.raises(CommandError, match=r"bad is a link to .*leads out"):
        packing.pack(tree)
    assert "bad" not in members(packing.pack(tree, exclude=["bad"]))


def test_sockets_and_fifos_are_left_out_with_a_note(tree: Path) -> None:
    os.mkfifo(tree / "pipe")
    packed = packing.pack(tree)
    assert any("pipe is no file" in note for note in packed.notes)
    assert "pipe" not in members(packed)


def test_too_much_is_refused_before_it_is_sent(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "MAX_BYTES", 10)
    with pytest.raises(CommandError, match="--exclude"):
        packing.pack(tree)


def test_names_that_are_not_utf8(tree: Path) -> None:
    odd = os.fsencode(tree) + b"/odd\xff.txt"
    with open(odd, "wb") as file:
        file.write(b"x")
    packed = packing.pack(tree)
    with packed.file, tarfile.open(fileobj=io.BytesIO(packed.file.read()), errors="surrogateescape") as archive:
        assert os.fsencode(next(name for name in archive.getnames() if name.startswith("odd"))) == b"odd\xff.txt"


def test_archives_that_exist(tree: Path, tmp_path: Path) -> None:
    packed = packing.pack(tree)
    ready = tmp_path / "ready.tgz"
    ready.write_bytes(content(packed))
    assert len(content(packing.open_archive(ready))) == ready.stat().st_size
    plain = tmp_path / "plain.tar"
    with tarfile.open(plain, "w") as archive:
        archive.add(tree / "run.sh", "run.sh")
    assert list(members(packing.open_archive(plain))) == ["run.sh"]
    text = tmp_path / "notes.txt"
    text.write_text("x")
    with pytest.raises(CommandError, match="neither a directory nor"):
        packing.open_archive(text)


def test_no_directory() -> None:
    with pytest.raises(CommandError, match="is not a directory"):
        packing.pack(Path("/nonexistent"))
