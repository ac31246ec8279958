"""What the documents say about the code, checked: links, settings, commands."""

import re
from pathlib import Path

import pytest

from journeyman.apps.cli.main import app
from journeyman.platform.kit import metrics
from journeyman.platform.kit.settings import Settings

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_variables_are_settings(page: Path) -> None:
    others = {"url", "api_key", "api_port", "gateway_port", "image"}  # of the command line and of compose
    for name in re.findall(r"\bJOURNEYMAN_([A-Z0-9_]+)\b", page.read_text()):
        if not name.endswith("_"):
            assert name.lower() in others | set(Settings.model_fields), name


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_commands_exist(page: Path) -> None:
    known = commands() | {group.name for group in app.registered_groups}
    for command in re.findall(r"(?:^|[`(] ?)journeyman ([a-z][a-z-]+)\b", page.read_text(), re.MULTILINE):
        assert command in known, command


def test_the_guide_to_the_command_line_has_every_command() -> None:
    text = (ROOT / "docs/guides/cli.md").read_text()
    missing = [name for name in commands() if not re.search(rf"(`|\bjourneyman |\| ){name}\b", text)]
    assert not missing


def commands() -> set[str]:
    """The commands that are there for people."""
    return {
        command.name or command.callback.__name__.rstrip("_")
        for command in app.registered_commands
        if command.callback and not command.hidden
    }


def test_metrics_in_the_guide_exist() -> None:
    text = (ROOT / "docs/guides/operations.md").read_text()
    known = {family.name for family in metrics.REGISTRY.collect()}
    for name in re.findall(r"`(journeyman_[a-z_]+)", text):
        assert name.removesuffix("_total") in known, name


def test_every_decision_is_listed_and_says_what_checks_it() -> None:
    directory = ROOT / "docs/decisions"
    index = (directory / "README.md").read_text()
    for page in sorted(directory.glob("0*.md")):
        assert f"({page.name})" in index
        assert "**Checked by**" in page.read_text()
