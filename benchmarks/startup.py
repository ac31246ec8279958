"""How long ``journeyman up`` takes until everything answers: on an empty data directory (cold), and again on it (warm)."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.results import Row, percentile, report

WARM_STARTS = 5
TARGET_S = 8.0


def journeyman(*arguments: str, data_dir: Path) -> float:
    """Run a command of the CLI to its end; returns the seconds it took."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JOURNEYMAN_")}
    command = [sys.executable, "-m", "journeyman.apps.cli.main", *arguments, "--data-dir", str(data_dir)]
    started = time.monotonic()
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        sys.exit(f"journeyman {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")
    return time.monotonic() - started


def slowest_part(data_dir: Path) -> tuple[str, float]:
    """The part that took longest from its own start until it was ready."""
    parts = json.loads((data_dir / "stack.json").read_text())["parts"]
    slowest = max(parts, key=lambda part: part["seconds"])
    return slowest["name"], slowest["seconds"]


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="jm-startup-", ignore_cleanup_errors=True) as name:
        data_dir = Path(name)
        warm: list[float] = []
        stops: list[float] = []
        try:
            cold = journeyman("up", "--detach", data_dir=data_dir)
            for _ in range(WARM_STARTS):
                stops.append(journeyman("down", data_dir=data_dir))
                warm.append(journeyman("up", "--detach", data_dir=data_dir))
            part, seconds = slowest_part(data_dir)
        finally:
            journeyman("down", data_dir=data_dir)
    report(
        "startup",
        [
            Row("journeyman up, warm", "p50", round(percentile(warm, 0.5), 2), "s", TARGET_S),
            Row("journeyman up, warm", "max", round(max(warm), 2), "s"),
            Row("journeyman up, cold", "once", round(cold, 2), "s"),
            Row("journeyman down", "p50", round(percentile(stops, 0.5), 2), "s"),
            Row(f"slowest part of the last warm start ({part})", "once", round(seconds, 2), "s"),
        ],
    )


if __name__ == "__main__":
    main()
