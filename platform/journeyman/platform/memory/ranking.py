"""Which of the memories that fit come first: similarity, corrected by age, use, confirmation and source.

    rank = similarity
           + 0.010 · log2(1 + confirmations)      at most 0.03
           + 0.005 · log2(1 + uses)               at most 0.02
           + 0.02    when a person wrote or edited it
           - 0.02    when the task that wrote it did not succeed, and nobody confirmed or edited it since
           - 0.04 · (1 - 2^(-idle / 90 days))     idle: since it was last written, confirmed, edited or recalled

Relevance plus a recency that decays exponentially is the retrieval function of Park et al. 2023, "Generative Agents"; that
repetition counts by its logarithm is the base-level activation of ACT-R (Anderson and Schooler 1991). The corrections
together are about as wide as the gap measured between a memory that fits and one that does not (``benchmarks/memory.py``:
0.07 on the narrow scale of multilingual-e5): they reorder what fits and hardly lift what does not. Uses weigh least, since
what is shown is used: more would keep the first ones first for ever.

A contradiction cannot be seen in vectors. Of two memories on the same subject (half of their words or more in common), a
person's newer word therefore comes before what agents wrote earlier. And of several such only the first takes a place as
long as others fit, so that the same fact in five versions does not crowd out the rest.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from journeyman.platform.memory.wording import overlap

HALF_LIFE_DAYS: Final = 90.0
SAME_SUBJECT: Final = 0.5
"""Share of words in common from which two memories count as being about the same."""

_DAY: Final = 86_400.0
_FIRST: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Candidate:
    """A memory that fits, with what its rank depends on. ``similarity`` is the cosine, -1 to 1."""

    id: str
    text: str
    similarity: float
    said_at: datetime
    """When its text was written or edited."""
    alive_at: datetime
    """When it was last written, confirmed, edited or recalled."""
    confirmations: int
    uses: int
    of_person: bool
    """Written or edited by a person."""
    doubtful: bool
    """From a task that did not succeed, and vouched for by nobody since."""


def rank(candidate: Candidate, now: datetime) -> float:
    """The formula above."""
    idle_days = max(0.0, (now - candidate.alive_at).total_seconds() / _DAY)
    return (
        candidate.similarity
        + min(0.03, 0.010 * math.log2(1 + candidate.confirmations))
        + min(0.02, 0.005 * math.log2(1 + candidate.uses))
        + (0.02 if candidate.of_person else 0.0)
        - (0.02 if candidate.doubtful else 0.0)
        - 0.04 * (1 - 2 ** (-idle_days / HALF_LIFE_DAYS))
    )


@dataclass(frozen=True, slots=True)
class Ranked:
    candidate: Candidate
    rank: float


def best(candidates: Sequence[Candidate], now: datetime, limit: int) -> list[Ranked]:
    """At most ``limit`` of them, the best first; the same ones in any order give the same list."""
    ranked = _persons_word([Ranked(candidate, rank(candidate, now)) for candidate in candidates])
    ranked.sort(key=lambda entry: (-entry.rank, entry.candidate.id))
    chosen: list[Ranked] = []
    versions: list[Ranked] = []
    for entry in ranked:
        told = any(overlap(entry.candidate.text, other.candidate.text) >= SAME_SUBJECT for other in chosen)
        (versions if told else chosen).append(entry)
    return (chosen + versions)[:limit]


def _persons_word(ranked: list[Ranked]) -> list[Ranked]:
    """Those of agents ranked behind every newer one of a person on the same subject."""
    persons = [entry for entry in ranked if entry.candidate.of_person]
    corrected: list[Ranked] = []
    for entry in ranked:
        ceiling = min(
            (
                person.rank
                for person in persons
                if not entry.candidate.of_person
                and person.candidate.said_at > entry.candidate.said_at
                and overlap(entry.candidate.text, person.candidate.text) >= SAME_SUBJECT
            ),
            default=math.inf,
        )
        corrected.append(replace(entry, rank=ceiling - _FIRST) if ceiling < entry.rank else entry)
    return corrected
