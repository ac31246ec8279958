"""How text becomes arguments: quotes, escapes, brace lists, and the marks of parts that are known only at run time."""

import re
from typing import Final

from journeyman.agents.shell_commands import Word, unknown

MAX_EXPANDED: Final = 64

LATE: Final = "\U000f0000"
"""Stands before a part of a word that is known only at run time."""
PROTECTED: Final = {ord(character): chr(0xF1000 + ord(character)) for character in "{},*?[]~ \t\n."}
BARE: Final = {ord(shown): chr(character) for character, shown in PROTECTED.items()} | {ord(LATE): ""}
CODE: Final = re.compile(r"\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|([0-7]{1,3})|(.))", re.DOTALL)
_ESCAPES: Final = dict(zip("ntraebfvE", "\n\t\r\a\x1b\b\f\v\x1b", strict=True))
_BRACES: Final = re.compile(r"\{([^{}]*,[^{}]*|\w+\.\.\w+(?:\.\.\w+)?)\}")


def quoted(word: str) -> str:
    return '"$late"' if unknown(word) else "'" + word.replace("'", "'\\''") + "'"


def decoded(match: re.Match[str]) -> str:
    if match[4]:
        return _ESCAPES.get(match[4], match[4])
    return chr(int(match[1] or match[2] or match[3], 8 if match[3] else 16))


def unescaped(text: str) -> str:
    """The content of double quotes."""
    return re.sub(r"\\([\"\\$`\n])", lambda match: match[1].strip("\n"), text)


def word_of(text: str) -> Word:
    before, late, _ = text.partition(LATE)
    return Word(text.translate(BARE), before.translate(BARE) if late else None, glob=bool(re.search(r"[*?\[]", text)))


def expand_braces(text: str) -> list[str]:
    """Brace lists written out, the innermost first; more than ``MAX_EXPANDED`` words are known only at run time."""
    done: list[str] = []
    left = [text]
    while left:
        word = left.pop(0)
        match = _BRACES.search(word)
        if match is None:
            done.append(word)
        elif len(left) + len(done) > MAX_EXPANDED:
            return [LATE + text]
        else:
            items = match[1].split(",") if "," in match[1] else match[1].split("..")[:2]
            left = [word[: match.start()] + item + word[match.end() :] for item in items] + left
    return done
