"""Whether the parts that the memory needs answer: said in metrics, and once in the log when it changes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from journeyman.platform.kit.errors import Unavailable
from journeyman.platform.kit.logging import get_logger
from journeyman.platform.kit.metrics import MEMORY_DOWN

Part = Literal["index", "embedder"]

_log = get_logger(__name__)


class Health:
    """What this process last saw of them."""

    def __init__(self) -> None:
        self._down: set[Part] = set()

    @contextmanager
    def of(self, part: Part) -> Iterator[None]:
        """Around calls to the part: notes whether it answers, and lets :class:`Unavailable` through."""
        try:
            yield
        except Unavailable as error:
            MEMORY_DOWN.labels(part).set(1)
            if part not in self._down:
                self._down.add(part)
                _log.warning(
                    "memory.down",
                    part=part,
                    error=str(error),
                    meaning="agents work without the memory of earlier tasks; what is written is kept and indexed later",
                )
            raise
        MEMORY_DOWN.labels(part).set(0)
        if part in self._down:
            self._down.discard(part)
            _log.info("memory.back", part=part)
