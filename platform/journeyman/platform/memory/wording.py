"""When two memories say the same in other words.

Vectors alone cannot tell. Measured with multilingual-e5-small (``benchmarks/memory.py``): "the server listens on port 8080
in development" and "… in production" have a cosine of 0.99, while true paraphrases go down to 0.95. A vector finds the
candidates; the wording decides. Merging two memories that differ loses knowledge, keeping two that do not costs a line.
So only function words, inflection, punctuation and the order of clauses may differ: never a name, a number, a negation,
or who does what to whom.
"""

import re
from functools import lru_cache
from typing import Final

_TOKEN: Final = re.compile(r"`[^`]*`|[^\s`]+")
_EDGES: Final = " \t\n\"'\u201c\u201d\u2018\u2019\u201e()[]{}<>,;:.!?…*"
_CLAUSE_END: Final = frozenset(",;:.!?")
_JOINING: Final = frozenset({"and", "und"})
_PLAIN: Final = re.compile(r"[^\W\d_]+(?:['\u2019-][^\W\d_]+)*")
_SUFFIX: Final = re.compile(r"(?:['\u2019]s|ing|ed|es|s|e)$")

# Words that carry no fact by themselves. Modal verbs and negations are not among them: "may" is not "must".
_FUNCTION_WORDS: Final = """
    a an the this that these those it its they their them there here is are was were be been being am has have had do does
    did of in on at by for with which who
    der die das den dem des ein eine einen einem einer ist sind war wird werden sich es sie im am zum zur mit für von bei
"""
_FUNCTION: Final = frozenset(_FUNCTION_WORDS.split())


def repeats(one: str, other: str) -> bool:
    """Whether the texts say the same as far as their wording tells: clause by clause, the same words in the same order."""
    return sorted(_clauses(one)) == sorted(_clauses(other))


def overlap(one: str, other: str) -> float:
    """Share of the words that both texts have, 0 to 1: two of the same subject, whether they agree or contradict."""
    left, right = _words(one), _words(other)
    return len(left & right) / len(left | right) if left and right else 0.0


@lru_cache(maxsize=4096)
def _words(text: str) -> frozenset[str]:
    return frozenset(word for clause in _clauses(text) for word in clause)


@lru_cache(maxsize=4096)
def _clauses(text: str) -> tuple[tuple[str, ...], ...]:
    clauses: list[tuple[str, ...]] = []
    words: list[str] = []
    for match in _TOKEN.finditer(text):
        token = match.group()
        bare = token if token.startswith("`") else token.strip(_EDGES)
        word = _stem(bare)
        if word in _JOINING:
            word = ""
            ends = True
        else:
            ends = not token.startswith("`") and token[-1:] in _CLAUSE_END
        if word and word not in _FUNCTION:
            words.append(word)
        if ends and words:
            clauses.append(tuple(words))
            words = []
    if words:
        clauses.append(tuple(words))
    return tuple(clauses)


def _stem(token: str) -> str:
    """A plain word without case and inflection; code, names, numbers and paths as they are."""
    if not _PLAIN.fullmatch(token) or any(character.isupper() for character in token[1:]):
        return token
    word = token.casefold()
    if word in _FUNCTION or word in _JOINING:
        return word
    return _SUFFIX.sub("", word) if len(word) > 4 else word
