"""Whether a text would tell later tasks how a task is verified.

Agents see the acceptance commands of their own task. What they write for later tasks must name neither these commands nor
the files and tests that the commands name. Wording is all that is compared: a fact that an agent puts in words of its own
passes. After a failed verification nothing of a task is kept at all, since everything may derive from that failure.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final

_QUOTES: Final = re.compile(r"[`'\"\\]")
_TOKEN: Final = re.compile(r"\w+|[^\w\s]")
_SEPARATORS: Final = re.compile(r"[\s;|&()<>={}\[\],]+|::")
_SUFFIX: Final = re.compile(r"\w\.[A-Za-z]\w*$")
_TEST: Final = re.compile(r"(?:test|spec)_\w+|\w+_(?:test|spec)s?", re.IGNORECASE)
_TEST_ID: Final = re.compile(r"(?<=::)\w+")
_SYSTEM: Final = ("/bin/", "/dev/", "/etc/", "/opt/", "/proc/", "/sbin/", "/usr/", "/var/")
_SHORTEST: Final = 4
"""Characters of a name: shorter ones stand in texts by chance."""


def names_verification(text: str, commands: Iterable[str]) -> bool:
    """Whether one of the commands, or a file or test that one names, stands in the text.

    White space, quotes and case do not count. A name counts as a whole word only.
    """
    bare = _QUOTES.sub("", text)
    return any(re.search(pattern, bare, re.IGNORECASE) for command in commands for pattern in _patterns(command))


def _patterns(command: str) -> Iterator[str]:
    whole = r"\s*".join(re.escape(token) for token in _TOKEN.findall(_QUOTES.sub("", command)))
    if whole:
        yield rf"(?<!\w){whole}(?!\w)"
    for name in _names(command):
        yield rf"(?<!\w){re.escape(name)}(?!\w)"


def _names(command: str) -> set[str]:
    """Paths, their ends, file names, modules and tests in a command; not programs and files of the system."""
    names: set[str] = set()
    bare = _QUOTES.sub(" ", command)
    for word in _SEPARATORS.split(bare):
        path = word.removeprefix("./").rstrip("/.")
        if path.startswith(_SYSTEM):
            continue
        parts = [part for part in path.split("/") if part]
        names.update("/".join(parts[start:]) for start in range(len(parts) - 1))
        if parts and _SUFFIX.search(parts[-1]):
            names.add(parts[-1])
        names.update(test for part in parts for test in part.split(".") if _TEST.fullmatch(test))
    names.update(_TEST_ID.findall(bare))
    return {name for name in names if len(name) >= _SHORTEST}
