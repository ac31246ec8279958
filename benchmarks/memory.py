"""How close are the vectors of memories that say the same, and of those that do not; what is merged of each.

The numbers behind ``REPEATED`` in ``memory/indexing.py``, ``MIN_SCORE`` in ``memory/service.py`` and the width of the corrections in
``memory/ranking.py``. Nothing here is timed.
"""

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.results import Row, percentile, report
from journeyman.apps.embedded.stack import EmbeddedStack
from journeyman.platform.kit.settings import Settings
from journeyman.platform.memory.embedder import OpenAIEmbedder
from journeyman.platform.memory.indexing import REPEATED
from journeyman.platform.memory.wording import repeats

Pairs = Sequence[tuple[str, str]]

REWORDED = (
    ("The tests need PostgreSQL.", "Tests need PostgreSQL!"),
    ("Run the tests with `make test`.", "Run tests with `make test`"),
    ("Run the tests with `make test`; they need PostgreSQL.", "They need PostgreSQL; run the tests with `make test`."),
    ("Money is kept in integer cents, never in floats.", "Money is kept in integer cents, never floats."),
    ("The CSV reader must skip the first two lines.", "CSV readers must skip the first two lines"),
    (
        "Generated files under `src/gen` must not be edited by hand.",
        "Generated files in `src/gen` must not be edited by hand",
    ),
    ("The server listens on port 8080 in development.", "Server listens on port 8080 in development."),
    (
        "A review found: the empty list is not handled in mean().",
        "A review found: an empty list is not handled in mean().",
    ),
    ("Logs are written to /var/log/app.log in JSON.", "The logs are written to /var/log/app.log in JSON."),
    ("The linter is configured in pyproject.toml.", "Linter is configured in `pyproject.toml`."),
    ("Dates are stored in UTC, and shown in local time.", "Dates are stored in UTC and shown in the local time."),
    ("Die Tests brauchen eine Datenbank.", "Tests brauchen eine Datenbank!"),
)

PARAPHRASED = (
    (
        "Run the tests with `make test`; they need PostgreSQL.",
        "The tests need PostgreSQL and are run with `make test`.",
    ),
    (
        "The tests are started with `pytest -q` from the repository root.",
        "From the repository root, start the tests with `pytest -q`.",
    ),
    (
        "Dates in invoices are stored in UTC and shown in the customer's time zone.",
        "Invoice dates are kept in UTC and displayed in the time zone of the customer.",
    ),
    (
        "The build fails when node_modules is missing; run `npm ci` first.",
        "Without node_modules the build fails, so run `npm ci` first.",
    ),
    (
        "Money is kept in integer cents, never in floats.",
        "Amounts of money are stored as integer cents and never as floats.",
    ),
    (
        "`billing/discounts.py` rounds half up, as the accounting rules demand.",
        "Accounting rules demand rounding half up, which `billing/discounts.py` does.",
    ),
    (
        "The CSV reader must skip the first two lines, which are a banner.",
        "The first two lines of the CSV are a banner and have to be skipped by the reader.",
    ),
    (
        "Integration tests need the variable DATABASE_URL to be set.",
        "DATABASE_URL has to be set for the integration tests.",
    ),
    (
        "The linter is configured in pyproject.toml; do not add a setup.cfg.",
        "Linter configuration lives in pyproject.toml; do not add a setup.cfg.",
    ),
    (
        "The API returns 404 for objects of another tenant.",
        "For objects that belong to another tenant, the API answers 404.",
    ),
    (
        "Generated files under `src/gen` must not be edited by hand.",
        "Do not edit files under `src/gen` by hand, they are generated.",
    ),
    (
        "A review found: the empty list is not handled in mean().",
        "A review found: mean() does not handle the empty list.",
    ),
    (
        "The migration takes about 5 minutes on the test data.",
        "On the test data the migration takes roughly 5 minutes.",
    ),
    (
        "Only version 3 of the protocol is supported by the server.",
        "The server supports only version 3 of the protocol.",
    ),
    (
        "Use `git bisect` to find regressions; the history is linear.",
        "History is linear, so regressions can be found with `git bisect`.",
    ),
    (
        "The worker must be restarted after a change of the configuration.",
        "After the configuration was changed, the worker must be restarted.",
    ),
    ("Logs are written to /var/log/app.log in JSON.", "The app writes its logs as JSON to /var/log/app.log."),
    (
        "The project uses tabs for indentation in Makefiles only.",
        "In this project, only Makefiles are indented with tabs.",
    ),
    (
        "Tests in tests/slow are skipped unless RUN_SLOW=1 is set.",
        "Unless RUN_SLOW=1 is set, the tests in tests/slow are skipped.",
    ),
    (
        "Price lists have a semicolon as separator and a comma as decimal mark.",
        "In price lists the separator is a semicolon and the decimal mark a comma.",
    ),
    (
        "The cache is invalidated by deleting the directory .cache.",
        "Delete the directory .cache to invalidate the cache.",
    ),
    (
        "Public functions need a docstring, or the check fails.",
        "The check fails when a public function has no docstring.",
    ),
    (
        "The maintainers prefer small commits with one change each.",
        "Small commits with one change each are preferred by the maintainers.",
    ),
    ("Die Tests brauchen eine laufende PostgreSQL-Datenbank.", "Für die Tests muss eine PostgreSQL-Datenbank laufen."),
)

DIFFERENT = (
    ("`pytest -q tests/unit` passes in this project.", "`pytest -q tests/api` passes in this project."),
    ("`make test` passes in this project.", "`make lint` passes in this project."),
    ("The server listens on port 8080.", "The server listens on port 8443."),
    ("The server listens on port 8080 in development.", "The server listens on port 8080 in production."),
    ("The tests need PostgreSQL.", "The tests do not need PostgreSQL."),
    ("Run the migrations before starting the server.", "Run the migrations after starting the server."),
    ("The cache is enabled by default.", "The cache is disabled by default."),
    ("Timeouts are given in seconds.", "Timeouts are given in milliseconds."),
    ("The first line of the CSV is a header.", "The last line of the CSV is a total."),
    ("Rounding is half up in invoices.", "Rounding is half even in invoices."),
    ("Prices include tax.", "Prices exclude tax."),
    ("The function returns None for a missing key.", "The function raises KeyError for a missing key."),
    ("The list is sorted in ascending order.", "The list is sorted in descending order."),
    ("The API client retries three times.", "The API client retries five times."),
    ("The file config/dev.yml is used in tests.", "The file config/test.yml is used in tests."),
    (
        "A review found: the empty list is not handled in mean().",
        "A review found: the empty list is not handled in median().",
    ),
    ("A review found: the test does not fail without the change.", "A review found: the test fails with the change."),
    ("Python 3.11 is required.", "Python 3.12 is required."),
    ("The build needs Node 18 or newer.", "The build needs Node 18 or older."),
    ("Uploads are limited to 10 MB.", "Uploads are limited to 100 MB."),
    ("Never commit generated files.", "Always commit generated files."),
    ("Deploys happen on Monday.", "Deploys happen on Friday."),
    ("The production database is in Frankfurt.", "The staging database is in Frankfurt."),
    ("The column `name` must be unique.", "The column `email` must be unique."),
    ("Use spaces for indentation.", "Use tabs for indentation."),
    ("The admin may delete users.", "The admin may not delete users."),
    ("The left operand is evaluated first.", "The right operand is evaluated first."),
    ("Only admins can see the audit log.", "Only members can see the audit log."),
    ("The request is idempotent.", "The response is idempotent."),
    ("Discounts are applied before tax.", "Discounts are applied after tax."),
    ("Dates are written day first.", "Dates are written month first."),
    ("The minimum order is 20 euros.", "The maximum order is 20 euros."),
    ("The parser accepts trailing commas.", "The parser rejects trailing commas."),
    ("The tests run in parallel.", "The tests run in sequence."),
    ("Input files are encoded in Latin-1.", "Output files are encoded in Latin-1."),
    ("`git push` triggers the pipeline.", "A merge triggers the pipeline."),
    ("The server keeps sessions in memory.", "The server keeps sessions in Redis."),
    ("The customer's address is optional.", "The customer's address is mandatory."),
    ("Tests need the network.", "Tests need the database."),
    ("The index is rebuilt every night.", "The index is rebuilt every week."),
    ("Ids are UUIDs.", "Ids are integers."),
    ("Vendor code is in third_party and must not be changed.", "Vendor code is in third_party and may be changed."),
    ("The word count ignores case.", "The word count respects case."),
    ("Run `npm ci` before `npm test`.", "Run `npm test` before `npm ci`."),
    ("The client sends the token in a header.", "The client sends the token in a cookie."),
    ("Die Tests brauchen eine Datenbank.", "Die Tests brauchen keine Datenbank."),
    ("Negative amounts are refunds.", "Positive amounts are refunds."),
    ("The old API is deprecated.", "The new API is deprecated."),
    ("Errors are logged to stderr.", "Errors are logged to stdout."),
    ("Alice reviews changes to billing.", "Bob reviews changes to billing."),
    ("The server trusts the client.", "The client trusts the server."),
    ("The parser calls the scanner.", "The scanner calls the parser."),
    ("Convert from euros to dollars.", "Convert from dollars to euros."),
    ("Copy `a.txt` to `b.txt`.", "Copy `b.txt` to `a.txt`."),
    ("Orders are shipped by Alice and paid by Bob.", "Orders are shipped by Bob and paid by Alice."),
    ("The index is faster than the scan.", "The scan is faster than the index."),
)

QUESTIONS = (
    ("How are the tests run?", 0),
    ("Which separator do price lists have?", 19),
    ("How is money stored?", 4),
    ("Where do logs go?", 16),
    ("How do I find a regression?", 14),
    ("what rounding rule applies to invoices and discounts", 5),
    ("Repair the CSV import so that banners are skipped", 6),
    ("Add an endpoint that returns objects of a tenant", 9),
    ("Fix the failing tests of the billing module", 5),
    ("Write a docstring", 21),
)
"""Questions and instructions, each with the place in ``PARAPHRASED`` of the memory that fits."""


def cosine(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


async def closeness(
    embedder: OpenAIEmbedder, name: str, pairs: Pairs, *, merged_at_most: float | None = None
) -> list[Row]:
    left = await embedder.embed_passages([one for one, _ in pairs])
    right = await embedder.embed_passages([other for _, other in pairs])
    scores = [cosine(a, b) for a, b in zip(left, right, strict=True)]
    merged = sum(score >= REPEATED and repeats(*pair) for score, pair in zip(scores, pairs, strict=True))
    return [
        Row(name, "lowest cosine", min(scores), ""),
        Row(name, "median cosine", percentile(scores, 0.5), ""),
        Row(name, "highest cosine", max(scores), ""),
        Row(name, f"merged, of {len(pairs)}", merged, "pairs", merged_at_most),
    ]


async def answers(embedder: OpenAIEmbedder) -> list[Row]:
    passages = await embedder.embed_passages([one for one, _ in PARAPHRASED])
    fitting: list[float] = []
    others: list[float] = []
    for question, place in QUESTIONS:
        vector = await embedder.embed_query(question)
        scores = [cosine(vector, passage) for passage in passages]
        fitting.append(scores.pop(place))
        others += scores
    return [
        Row("question and its answer", "lowest cosine", min(fitting), ""),
        Row("question and its answer", "median cosine", percentile(fitting, 0.5), ""),
        Row("question and another memory", "median cosine", percentile(others, 0.5), ""),
        Row("question and another memory", "p95 cosine", percentile(others, 0.95), ""),
    ]


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="jm-bench-", ignore_cleanup_errors=True) as directory:
        data = Path(directory) / "data"
        stack = EmbeddedStack(data, parts=(), settings=Settings(data_dir=data))
        try:
            await stack.start()
            await stack.add("embeddings")
            assert stack.settings.embedding_base_url is not None
            embedder = OpenAIEmbedder(stack.settings.embedding_base_url, "none", stack.settings.embedding_model)
            rows = await closeness(embedder, "lightly reworded", REWORDED)
            rows += await closeness(embedder, "paraphrased", PARAPHRASED)
            rows += await closeness(embedder, "something else", DIFFERENT, merged_at_most=0)
            rows += await answers(embedder)
            await embedder.close()
        finally:
            await stack.stop()
    report("memory", rows)


if __name__ == "__main__":
    asyncio.run(main())
