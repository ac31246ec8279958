"""The command line against a server that speaks the REST contract from memory."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from journeyman.apps.cli import main as cli
from support.fake_rest import KEY, Server, serving


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as state:
        yield state


@dataclass
class Result:
    code: int
    out: str
    err: str


class Runner:
    """Runs ``journeyman …`` in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capfd = capfd

    def __call__(self, *arguments: str) -> Result:
        self._capfd.readouterr()
        self._monkeypatch.setattr("sys.argv", ["journeyman", *arguments])
        code: int | str | None = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code
        captured = self._capfd.readouterr()
        assert code is None or isinstance(code, int)
        return Result(code or 0, captured.out, captured.err)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data directory, and no server named."""
    directory = tmp_path / "data"
    directory.mkdir()
    monkeypatch.setenv("JOURNEYMAN_DATA_DIR", str(directory))
    monkeypatch.delenv("JOURNEYMAN_URL", raising=False)
    monkeypatch.delenv("JOURNEYMAN_API_KEY", raising=False)
    return directory


@pytest.fixture
def bare(home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Runner:
    """The command without a server."""
    return Runner(monkeypatch, capfd)


@pytest.fixture
def run(bare: Runner, server: Server, monkeypatch: pytest.MonkeyPatch) -> Runner:
    """The command with the fake server named in the environment."""
    monkeypatch.setenv("JOURNEYMAN_URL", server.url)
    monkeypatch.setenv("JOURNEYMAN_API_KEY", KEY)
    return bare
