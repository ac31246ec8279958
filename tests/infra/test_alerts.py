"""The alert rules are rules, count what there is to count, and are explained."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from journeyman.platform.events.types import EventType
from journeyman.platform.inference.gateway import metrics as gateway_metrics
from journeyman.platform.kit import metrics
from journeyman.platform.tasks.contract import PAUSE_REASONS, TaskState
from journeyman.workflows import versioning

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs/guides/alerts.md").read_text()
DOCUMENT = yaml.safe_load((ROOT / "infra/alerts/journeyman.rules.yml").read_text())
RULES: list[dict[str, Any]] = [rule for group in DOCUMENT["groups"] for rule in group["rules"]]

assert gateway_metrics.CALLS
assert versioning
_WORDS = {"sum", "max", "rate", "increase", "by", "offset"}


def labels() -> dict[str, set[str]]:
    """Names of samples, and the labels that each can have."""
    known: dict[str, set[str]] = {}
    for collector in list(metrics.REGISTRY._names_to_collectors.values()):
        for name in getattr(collector, "_labelnames", ()) or ():
            for family in collector.describe():
                known.setdefault(family.name, set()).add(name)
        for family in getattr(collector, "describe", list)():
            known.setdefault(family.name, set())
    return known


def test_every_alert_has_a_name_of_its_own_and_all_parts() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(names) == len(set(names)) > 10
    for rule in RULES:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}, rule["alert"]
        assert rule["labels"]["severity"] in {"info", "warning", "critical"}
        assert set(rule["annotations"]) == {"summary", "runbook"}
        assert re.fullmatch(r"[1-9][0-9]*[smh]", rule.get("for", "1m"))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_what_it_counts_exists(rule: dict[str, Any]) -> None:
    expression = rule["expr"]
    assert expression.count("(") == expression.count(")")
    known = labels()
    bare = re.sub(r'"[^"]*"', '""', expression)
    for name, selector in re.findall(r"(journeyman_[a-z_]+)(\{[^}]*\})?", bare):
        family = name.removesuffix("_total")
        assert family in known, name
        for label in re.findall(r"([a-z_]+)\s*(?:=|!=)", selector):
            assert label in known[family], f"{name} has no label {label}"
    for words in re.findall(r"by \(([^)]*)\)", bare):
        assert {word.strip() for word in words.split(",")} <= set().union(*known.values())
    rest = re.sub(r"journeyman_[a-z_]+(\{[^}]*\})?|by \([^)]*\)|\[[1-9][0-9]*[smh]\]|offset [1-9][0-9]*[smh]", "", bare)
    assert set(re.findall(r"[a-z_]+", rest)) <= _WORDS
    for reason in re.findall(r'reason="([^"]*)"', expression):
        assert reason in PAUSE_REASONS
    for state in re.findall(r'state="([^"]*)"', expression):
        assert TaskState(state)
    for type_ in re.findall(r'type="([^"]*)"', expression):
        assert EventType(type_)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_it_is_explained(rule: dict[str, Any]) -> None:
    page, anchor = rule["annotations"]["runbook"].split("#")
    assert (ROOT / page).exists()
    assert anchor == rule["alert"].lower()
    explained = GUIDE.split(f"## {rule['alert']}\n", 1)
    assert len(explained) == 2
    assert len(explained[1].split("\n## ")[0].split()) > 10


def test_nothing_is_explained_that_is_no_alert() -> None:
    assert re.findall(r"^## (\S+)$", GUIDE, re.MULTILINE) == [rule["alert"] for rule in RULES]
