"""Suggested commands can be pasted as they are."""

import shlex
import sys
from pathlib import Path

import pytest

from journeyman.apps.cli.suggestions import command


def test_a_place_with_spaces_is_one_word_of_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    place = tmp_path / "my tools; true" / "bin"
    monkeypatch.setattr(sys, "executable", str(place / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    command.cache_clear()
    try:
        assert shlex.split(f"{command()} list") == [str(place / "journeyman"), "list"]
    finally:
        command.cache_clear()
