"""``journeyman gateway``: the inference gateway."""

import signal
from typing import Final

import uvicorn
import uvloop

from journeyman.platform.inference.gateway.app import create_gateway, gateway_database, instrumented
from journeyman.platform.kit import telemetry
from journeyman.platform.kit.settings import Settings
from journeyman.platform.kit.watchdog import watching

_GRACE_S: Final = 20
"""How long calls in flight may go on after a SIGTERM; then they are cut off and settled by estimate."""


def run_gateway(settings: Settings) -> None:
    """Serve the gateway at ``gateway_host:gateway_port`` until SIGTERM or SIGINT."""
    observed = telemetry.setup("gateway", settings)
    # When it has stopped, uvicorn raises the signal that stopped it once more: by default that would end the process
    # before its connections and its telemetry are closed.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: None)
    try:
        uvloop.run(_serve_gateway(settings))
    finally:
        observed.shutdown()


async def _serve_gateway(settings: Settings) -> None:
    database = gateway_database(settings)
    server = uvicorn.Server(
        uvicorn.Config(
            instrumented(create_gateway(settings, database)),
            host=settings.gateway_host,
            port=settings.gateway_port,
            http="httptools",
            ws="none",
            lifespan="on",
            access_log=False,
            log_config=None,
            # Longer than clients keep idle connections, so that none is closed just as a request goes out on it.
            timeout_keep_alive=75,
            timeout_graceful_shutdown=_GRACE_S,
        )
    )
    try:
        async with watching(
            "gateway", warn_after_s=settings.loop_stall_warn_s, exit_after_s=settings.loop_stall_exit_s
        ):
            await server.serve()
    finally:
        await database.close()
