"""The bounds of every argument of every tool, whatever its schema: what databases, file systems and JSON can hold."""

import re
from typing import Any, Final

from journeyman.agents.canonical import printable

MAX_CHARACTERS: Final = 4_000_000
"""Of all texts of one call together."""
MAX_INTEGER: Final = 2**63 - 1
"""The largest number that a column of the database holds."""
MAX_DEPTH: Final = 20
MAX_VALUES: Final = 20_000
MAX_PROBLEMS: Final = 10

_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def out_of_bounds(values: dict[str, Any]) -> list[str]:
    """What is wrong with the values, at most ``MAX_PROBLEMS`` sentences. Does not recurse: the depth is the model's choice."""
    problems: list[str] = []
    characters = seen = 0
    stack: list[tuple[str, Any, int]] = [("", values, 0)]
    while stack and len(problems) < MAX_PROBLEMS:
        where, value, depth = stack.pop()
        seen += 1
        if depth > MAX_DEPTH:
            return [*problems, f"The arguments are nested too deeply: more than {MAX_DEPTH} levels."]
        if seen > MAX_VALUES:
            return [*problems, f"The arguments have more than {MAX_VALUES:,} values; use several calls."]
        if isinstance(value, str):
            characters += len(value)
            problems += _of_text(where, value)
        elif isinstance(value, int | float):
            problems += _of_number(where, value)
        elif isinstance(value, dict):
            for key, item in reversed(value.items()):
                name = printable(str(key))[:80]
                if name != key:
                    problems.append(f"`{name}` is not the name of an argument.")
                else:
                    stack.append((f"{where}.{name}"[:400] if where else name, item, depth + 1))
        elif isinstance(value, list):
            stack.extend((f"{where}[{index}]", value[index], depth + 1) for index in range(len(value) - 1, -1, -1))
    if characters > MAX_CHARACTERS:
        problems.append(
            f"The arguments have {characters:,} characters, more than the {MAX_CHARACTERS:,} allowed; use several calls."
        )
    return problems[:MAX_PROBLEMS]


def _of_text(where: str, text: str) -> list[str]:
    if "\0" in text:
        return [f"`{where}` contains a NUL character; write binary data with `shell`, e.g. printf."]
    if _SURROGATE.search(text):
        return [f"`{where}` contains half of a surrogate pair, which is not a character."]
    return []


def _of_number(where: str, number: float) -> list[str]:
    if abs(number) <= MAX_INTEGER:  # false for NaN
        return []
    return [f"`{where}` is a number beyond 64 bits."]
