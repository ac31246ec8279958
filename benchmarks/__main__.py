"""Runs benchmarks, by default those in ``MODULES``, each in a process of its own, then prints one table of all results."""

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.results import RESULTS, Row, show

MODULES = (
    "startup",
    "sandbox",
    "snapshot",
    "branching",
    "gateway",
    "ledger",
    "events",
    "steps",
    "load",
    "takeover",
    "restart",
    "cancel",
    "idle",
    "forgetting",
    "memory",
    "context",
    "prompts",
    "recalls",
)


def main() -> int:
    names = sys.argv[1:] or list(MODULES)
    failed = [
        name for name in names if subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode
    ]
    rows: list[Row] = []
    for name in names:
        file = Path(RESULTS / f"{name}.json")
        if file.exists():
            rows.extend(
                Row(item["name"], item["metric"], item["value"], item["unit"], item.get("target"))
                for item in json.loads(file.read_text())
            )
    show("all", rows)
    if failed:
        print(f"did not run to the end: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
