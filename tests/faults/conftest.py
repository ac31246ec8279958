"""machine   a whole platform in processes of its own, which the test may kill, supervisor and all: ``Machine``"""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from benchmarks.endurance.machine import Machine


@pytest.fixture
async def machine(request: pytest.FixtureRequest) -> AsyncIterator[Machine]:
    """Started; stopped at the end. An indirect parameter is its environment."""
    with tempfile.TemporaryDirectory(prefix="jm-flt-", ignore_cleanup_errors=True) as root:
        machine = Machine(Path(root), environment=dict(getattr(request, "param", {})))
        machine.make()
        await machine.up()
        try:
            yield machine
        finally:
            await machine.down()
