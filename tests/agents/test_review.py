import pytest

from journeyman.agents.arguments import Finding, SubmitReview
from journeyman.agents.review import (
    FailedCommand,
    Next,
    ReviewPolicy,
    acceptance_reason,
    after_review,
    rejection_reason,
)

APPROVE = SubmitReview(verdict="approve")
MAJOR = SubmitReview(verdict="request_changes", findings=[Finding(severity="major", path="a.py", message="Wrong.")])
MINOR = SubmitReview(verdict="request_changes", findings=[Finding(severity="minor", message="Name it better.")])


@pytest.mark.parametrize(
    ("review", "round_number", "changed", "expected"),
    [
        (APPROVE, 1, True, Next.ACCEPT),
        (APPROVE, 9, False, Next.ACCEPT),
        (MAJOR, 1, True, Next.REVISE),
        (MAJOR, 2, True, Next.REVISE),
        (MAJOR, 3, True, Next.REPLAN),
        (MAJOR, 2, False, Next.REPLAN),
        (MAJOR, 1, False, Next.REVISE),
        (MINOR, 1, True, Next.REVISE),
        (MINOR, 2, True, Next.ACCEPT),
    ],
)
def test_what_a_review_leads_to(review, round_number, changed, expected):
    decision = after_review(review, round_number=round_number, work_changed=changed)
    assert decision.next == expected
    assert decision.reason


def test_every_subtask_comes_to_an_end():
    policy = ReviewPolicy(max_rounds=4)
    rounds = 1
    while after_review(MAJOR, round_number=rounds, policy=policy).next == Next.REVISE:
        rounds += 1
    assert rounds == 4


def test_reasons_carry_the_evidence():
    text = acceptance_reason([FailedCommand("make test", 2, "boom\n" * 5000), FailedCommand("sleep 9", None, "")])
    assert "exit code 2:\nmake test\nOutput:\nboom" in text
    assert "did not end in time:\nsleep 9\nOutput:\n(no output)" in text
    assert len(text) < 6000
    assert "- [major] a.py: Wrong." in rejection_reason("s1", MAJOR.findings, 3)
