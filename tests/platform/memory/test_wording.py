"""Which texts say the same: what may be merged, and what must never be."""

import pytest

from journeyman.platform.memory.wording import overlap, repeats


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("The tests need PostgreSQL.", "Tests need PostgreSQL!"),
        (
            "Run the tests with `make test`; they need PostgreSQL.",
            "They need PostgreSQL; run the tests with `make test`.",
        ),
        ("The CSV reader must skip the first two lines.", "CSV readers must skip the first two lines"),
        ("Dates are stored in UTC, and shown in local time.", "Dates are stored in UTC and shown in the local time."),
        ("Money is kept in cents, never in floats.", "Money is kept in cents, never floats."),
        ("Die Tests brauchen eine Datenbank.", "Tests brauchen Datenbank"),
    ],
)
def test_light_rewording_says_the_same(one: str, other: str) -> None:
    assert repeats(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("The server listens on port 8080.", "The server listens on port 8443."),
        ("The tests need PostgreSQL.", "The tests do not need PostgreSQL."),
        ("`pytest -q tests/unit` passes in this project.", "`pytest -q tests/api` passes in this project."),
        ("Run `npm ci` before `npm test`.", "Run `npm test` before `npm ci`."),
        ("The server trusts the client.", "The client trusts the server."),
        ("The column `name` must be unique.", "The column `Name` must be unique."),
        ("Vendor code must not be changed.", "Vendor code may not be changed."),
        ("Uploads are limited to 10 MB.", "Uploads are limited to 100 MB."),
        ("Set MODE=fast.", "Set MODE=slow."),
        ("Die Tests brauchen eine Datenbank.", "Die Tests brauchen keine Datenbank."),
    ],
)
def test_a_different_fact_never_does(one: str, other: str) -> None:
    assert not repeats(one, other)


def test_overlap_is_the_share_of_common_words() -> None:
    assert overlap("The server listens on port 8080.", "The server listens on port 8443.") == pytest.approx(3 / 5)
    assert overlap("The cat sleeps.", "Money is kept in cents.") == 0
    assert overlap("", "anything") == 0
    assert overlap("`make test`", "`make test`") == 1
