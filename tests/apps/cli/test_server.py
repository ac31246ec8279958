import json
from pathlib import Path

import pytest

from journeyman.apps.cli.server import data_dir, find_server
from journeyman.apps.exits import CommandError, Exit
from journeyman.platform.kit.settings import Settings


def test_options_come_first(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOURNEYMAN_URL", "http://environment")
    monkeypatch.setenv("JOURNEYMAN_API_KEY", "jm_environment")
    assert find_server().url == "http://environment"
    found = find_server("http://option/", "jm_option")
    assert (found.url, found.api_key, found.source) == ("http://option", "jm_option", "--url")


def test_the_data_directory_of_a_local_stack(home: Path) -> None:
    (home / "stack.json").write_text(json.dumps({"pid": 1, "urls": {"api": "http://127.0.0.1:1234"}}))
    (home / "admin.key").write_text("jm_admin\n")
    found = find_server()
    assert (found.url, found.api_key, found.source) == ("http://127.0.0.1:1234", "jm_admin", str(home))


def test_a_local_key_is_not_sent_to_a_named_server(home: Path) -> None:
    (home / "admin.key").write_text("jm_admin\n")
    with pytest.raises(CommandError, match="No API key for https://elsewhere"):
        find_server("https://elsewhere")


@pytest.mark.parametrize("content", ["", "[]", "{}", "{broken"])
def test_no_server(home: Path, content: str) -> None:
    (home / "stack.json").write_text(content)
    with pytest.raises(CommandError, match="journeyman up") as caught:
        find_server()
    assert caught.value.exit_code is Exit.PLATFORM


def test_what_is_no_address(home: Path) -> None:
    with pytest.raises(CommandError, match="http://"):
        find_server("localhost:80", "k")


@pytest.mark.parametrize("url", ["http://[::bad", "http://host:port", "http://host:99999999"])
def test_what_only_begins_like_an_address(home: Path, url: str) -> None:
    with pytest.raises(CommandError, match=r"\(from --url\) is none"):
        find_server(url, "k")


@pytest.mark.parametrize("key", ["jm_é", "jm_a\njm_b", "jm_…"])
def test_what_is_no_key(home: Path, key: str) -> None:
    with pytest.raises(CommandError, match="API key contains characters"):
        find_server("http://host", key)


def test_the_data_directory_is_the_settings_own(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert data_dir() == Settings().data_dir == home
    monkeypatch.delenv("JOURNEYMAN_DATA_DIR")
    assert data_dir() == Settings().data_dir
