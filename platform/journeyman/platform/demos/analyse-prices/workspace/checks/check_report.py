"""Checks a report on prices.csv against figures computed here, in another way than the report's own program should.

    python3 checks/check_report.py prices.csv REPORT.md CHART.svg

Prints one line for each check and exits with 1 when any fails.
"""

import csv
import math
import re
import statistics
import sys
import xml.etree.ElementTree as ElementTree
from fractions import Fraction


def expected(path):
    """The figures, from exact fractions as far as that goes."""
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    unique = {row["Date"]: row for row in rows}
    days = [(day, Fraction(row["Close"])) for day, row in sorted(unique.items()) if row["Close"]]
    closes = [close for _, close in days]
    changes = [after / before - 1 for before, after in zip(closes, closes[1:])]
    logs = [math.log(after) - math.log(before) for before, after in zip(closes, closes[1:])]
    low, low_at = min(
        (closes[later] / closes[peak] - 1, (days[peak][0], days[later][0]))
        for later in range(len(closes))
        for peak in [max(range(later + 1), key=lambda place: closes[place])]
    )
    best = max(range(len(changes)), key=lambda place: changes[place])
    worst = min(range(len(changes)), key=lambda place: changes[place])
    return {
        "Period": f"{days[0][0]} to {days[-1][0]}",
        "Trading days": str(len(days)),
        "Total return": percent(closes[-1] / closes[0] - 1),
        "Annualised volatility": percent(statistics.stdev(logs) * math.sqrt(252)),
        "Maximum drawdown": f"{percent(low)} ({low_at[0]} to {low_at[1]})",
        "Best day": f"{days[best + 1][0]} ({percent(changes[best])})",
        "Worst day": f"{days[worst + 1][0]} ({percent(changes[worst])})",
        "Duplicate rows removed": str(len(rows) - len(unique)),
        "Rows without a closing price left out": str(sum(not row["Close"] for row in unique.values())),
    }, len(days)


def percent(value):
    return f"{float(value) * 100:.2f} %"


def chart_problems(path, days):
    root = ElementTree.parse(path).getroot()
    if not root.tag.endswith("svg"):
        return ["the chart is not an SVG image"]
    lines = [element.get("points", "").split() for element in root.iter() if element.tag.endswith("polyline")]
    texts = [element.text or "" for element in root.iter() if element.tag.endswith("text")]
    problems = []
    if not any(len(points) == days for points in lines):
        problems.append(f"no line of the chart has {days} points")
    if not any(re.fullmatch(r"\d{4}-\d{2}", text) for text in texts):
        problems.append("the chart has no months on its axis")
    if not any(re.fullmatch(r"\d+", text) for text in texts):
        problems.append("the chart has no prices on its axis")
    return problems


def main(prices, report, chart):
    figures, days = expected(prices)
    with open(report, encoding="utf-8") as file:
        found = dict(re.findall(r"^- ([A-Z][^:\n]*): (.*)$", file.read(), re.MULTILINE))
    failed = False
    for name, value in figures.items():
        right = found.get(name) == value
        failed = failed or not right
        print(f"{'ok  ' if right else 'FAIL'} {name}: {value}" + ("" if right else f", but the report says {found.get(name)}"))
    for problem in chart_problems(chart, days):
        failed = True
        print(f"FAIL {problem}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
