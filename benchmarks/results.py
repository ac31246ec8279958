"""How benchmarks report: rows with a target, a table for people, JSON for programs."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Row:
    """One measured value; with a target, ``ok`` says whether it is at most that."""

    name: str
    metric: str
    value: float
    unit: str
    target: float | None = None

    @property
    def ok(self) -> bool | None:
        return None if self.target is None else self.value <= self.target


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest-rank percentile: the smallest value that at least this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def report(file: str, rows: Sequence[Row]) -> None:
    """Print the rows and write them to ``benchmarks/results/<file>.json``."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{file}.json").write_text(json.dumps([{**asdict(row), "ok": row.ok} for row in rows], indent=2) + "\n")
    show(file, rows)


def show(title: str, rows: Sequence[Row]) -> None:
    table = Table(title=title, title_justify="left")
    for heading in ("what", "metric", "value", "target", ""):
        table.add_column(heading, justify="right" if heading in {"value", "target"} else "left")
    for row in rows:
        verdict = {True: "ok", False: "MISSED", None: ""}[row.ok]
        target = "" if row.target is None else f"≤ {row.target:g} {row.unit}"
        table.add_row(row.name, row.metric, f"{row.value:.4g} {row.unit}", target, verdict)
    Console(width=120).print(table)
