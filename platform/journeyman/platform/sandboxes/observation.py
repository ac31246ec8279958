"""Spans and metrics of sandboxes, the same for every driver. Commands and outputs stay out of both."""

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

from opentelemetry import trace

from journeyman.platform.kit import metrics
from journeyman.platform.sandboxes.port import ExecResult, Sandbox

Run = TypeVar("Run", bound=Callable[..., Awaitable[ExecResult]])


@contextmanager
def observed_lease(driver: str) -> Iterator[None]:
    """The time from asking for a sandbox to having it, and whether it was had."""
    begun = time.perf_counter()
    outcome = "ok"
    with trace.get_tracer(__name__).start_as_current_span(
        "sandbox.lease", attributes={"journeyman.sandbox.driver": driver}
    ):
        try:
            yield
        except BaseException as error:
            outcome = str(getattr(error, "code", None) or "error")
            raise
        finally:
            metrics.SANDBOX_LEASES.labels(driver, outcome).inc()
            metrics.SANDBOX_LEASE_DURATION.labels(driver).observe(time.perf_counter() - begun)


def observed_run(driver: str) -> Callable[[Run], Run]:
    """Decorates a sandbox's ``run``: a span for each command, with how it ended but not what it was."""

    def decorate(run: Run) -> Run:
        @wraps(run)
        async def observed(sandbox: Sandbox, *args: Any, **kwargs: Any) -> ExecResult:
            begun = time.perf_counter()
            attributes = {"journeyman.sandbox.driver": driver, "journeyman.sandbox.id": sandbox.id}
            with trace.get_tracer(__name__).start_as_current_span("sandbox.run", attributes=attributes) as span:
                try:
                    result = await run(sandbox, *args, **kwargs)
                finally:
                    metrics.SANDBOX_EXEC_DURATION.labels(driver).observe(time.perf_counter() - begun)
                span.set_attributes(
                    {
                        "process.exit.code": -1 if result.exit_code is None else result.exit_code,
                        "journeyman.sandbox.timed_out": result.timed_out,
                        "journeyman.sandbox.reattached": result.reattached,
                        "journeyman.sandbox.output_bytes": result.total_bytes,
                    }
                )
                return result

        return cast(Run, observed)

    return decorate
