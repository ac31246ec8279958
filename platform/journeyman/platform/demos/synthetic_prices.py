"""Where the prices of the demo ``analyse-prices`` come from: a random walk with a fixed seed, made to look like a market.

Trading days are those of the New York Stock Exchange. Volatility comes in clusters, volume rises with it, and two flaws of
real exports are built in: a row that occurs twice, and one without a closing price.
"""

import math
from datetime import date, timedelta
from random import Random
from typing import Final

SEED: Final = 20_250_331
FIRST: Final = date(2024, 1, 2)
LAST: Final = date(2025, 3, 31)
HOLIDAYS: Final = frozenset(
    date.fromisoformat(day)
    for day in [
        "2024-01-15",
        "2024-02-19",
        "2024-03-29",
        "2024-05-27",
        "2024-06-19",
        "2024-07-04",
        "2024-09-02",
        "2024-11-28",
        "2024-12-25",
        "2025-01-01",
        "2025-01-09",
        "2025-01-20",
        "2025-02-17",
    ]
)
DUPLICATED: Final = date(2024, 5, 14)
WITHOUT_CLOSE: Final = date(2024, 9, 17)


def csv_text() -> str:
    """The file as bundled: header ``Date,Open,High,Low,Close,Volume``, prices with two decimals."""
    generator = Random(SEED)  # noqa: S311  not a secret
    lines = ["Date,Open,High,Low,Close,Volume"]
    close, deviation = 84.0, 0.012
    for day in _trading_days():
        opening = close * math.exp(generator.gauss(0, deviation / 3))
        change = generator.gauss(0.0006, deviation)
        close = opening * math.exp(change)
        high = max(opening, close) * math.exp(abs(generator.gauss(0, deviation / 3)))
        low = min(opening, close) * math.exp(-abs(generator.gauss(0, deviation / 3)))
        volume = round(1_400_000 * math.exp(generator.gauss(0, 0.22) + 14 * abs(change)), -2)
        # GARCH(1,1) with a long-run deviation of 1.3 % a day: calm and nervous weeks follow each other.
        deviation = math.sqrt(0.04 * 0.013**2 + 0.10 * change**2 + 0.86 * deviation**2)
        shown = "" if day == WITHOUT_CLOSE else f"{close:.2f}"
        row = f"{day},{opening:.2f},{high:.2f},{low:.2f},{shown},{volume:.0f}"
        lines += [row, row] if day == DUPLICATED else [row]
    return "\n".join(lines) + "\n"


def _trading_days() -> list[date]:
    days = (FIRST + timedelta(days=offset) for offset in range((LAST - FIRST).days + 1))
    return [day for day in days if day.weekday() < 5 and day not in HOLIDAYS]
