"""What comes first among the memories that fit."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from journeyman.platform.memory.ranking import HALF_LIFE_DAYS, Candidate, best, rank

NOW = datetime(2026, 6, 1, tzinfo=UTC)


def candidate(id_: str = "a", text: str = "", **changes: object) -> Candidate:
    plain = Candidate(
        id=id_,
        text=text or f"Something about {id_}{id_}{id_}.",
        similarity=0.85,
        said_at=NOW,
        alive_at=NOW,
        confirmations=0,
        uses=0,
        of_person=False,
        doubtful=False,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def order(*candidates: Candidate, limit: int = 10) -> list[str]:
    found = [entry.candidate.id for entry in best(candidates, NOW, limit)]
    assert found == [entry.candidate.id for entry in best(candidates[::-1], NOW, limit)]
    return found


def test_a_fresh_memory_ranks_by_its_similarity_alone() -> None:
    assert rank(candidate(), NOW) == pytest.approx(0.85)
    assert order(candidate("a", similarity=0.8), candidate("b", similarity=0.9)) == ["b", "a"]


def test_half_of_the_penalty_for_age_after_one_half_life() -> None:
    old = candidate(alive_at=NOW - timedelta(days=HALF_LIFE_DAYS))
    assert rank(old, NOW) == pytest.approx(0.85 - 0.02)
    ancient = candidate(alive_at=NOW - timedelta(days=100 * HALF_LIFE_DAYS))
    assert rank(ancient, NOW) == pytest.approx(0.85 - 0.04)


def test_of_two_equal_ones_the_one_never_used_for_long_comes_last() -> None:
    year_ago = NOW - timedelta(days=365)
    unused = candidate("a", said_at=year_ago, alive_at=year_ago)
    used = candidate("b", said_at=year_ago, alive_at=NOW, uses=3)
    assert order(unused, used) == ["b", "a"]


@pytest.mark.parametrize(
    "changes", [{"confirmations": 1}, {"uses": 1}, {"of_person": True}], ids=["confirmed", "used", "of a person"]
)
def test_what_speaks_for_a_memory(changes: dict[str, object]) -> None:
    assert order(candidate("a"), candidate("b", **changes)) == ["b", "a"]


def test_what_a_failed_task_wrote_comes_last() -> None:
    assert order(candidate("a", doubtful=True), candidate("b")) == ["b", "a"]


def test_nothing_lifts_what_does_not_fit_over_what_does() -> None:
    praised = candidate("a", similarity=0.76, confirmations=1000, uses=100_000, of_person=True)
    fits = candidate("b", similarity=0.86)
    assert order(praised, fits) == ["b", "a"]


def test_a_persons_newer_word_comes_before_what_agents_said_earlier() -> None:
    wrong = candidate(
        "a", "The server listens on port 8080.", said_at=NOW - timedelta(days=2), similarity=0.95, confirmations=50
    )
    right = candidate("b", "The server listens on port 8443.", of_person=True, said_at=NOW - timedelta(days=1))
    assert order(wrong, right) == ["b", "a"]
    newer = replace(wrong, said_at=NOW)
    assert order(newer, right) == ["a", "b"]
    elsewhere = replace(wrong, text="Money is kept in integer cents.")
    assert order(elsewhere, right) == ["a", "b"]


def test_one_fact_in_several_versions_takes_one_place() -> None:
    versions = [
        candidate(f"v{number}", f"The tests need PostgreSQL version {number}.", similarity=0.9) for number in range(4)
    ]
    other = candidate("other", "Money is kept in integer cents.", similarity=0.84)
    assert order(*versions, other, limit=2) == ["v0", "other"]
    assert order(*versions, other) == ["v0", "other", "v1", "v2", "v3"]
