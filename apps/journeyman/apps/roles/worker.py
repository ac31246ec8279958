"""``journeyman worker``: polls the task queues and runs workflows and activities."""

import asyncio
import signal

import uvloop

from journeyman.platform.kit import metrics, telemetry
from journeyman.platform.kit.settings import Settings
from journeyman.platform.kit.watchdog import watching
from journeyman.workflows.worker import run


def run_worker(settings: Settings) -> None:
    """Run a worker until SIGTERM or SIGINT, then drain."""
    started = telemetry.setup("worker", settings)
    if settings.worker_metrics_port:
        metrics.start_metrics_server(settings.worker_metrics_port, settings.metrics_host)

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        async with watching("worker", warn_after_s=settings.loop_stall_warn_s, exit_after_s=settings.loop_stall_exit_s):
            await run(settings, stop)

    try:
        uvloop.run(main())
    finally:
        started.shutdown()
