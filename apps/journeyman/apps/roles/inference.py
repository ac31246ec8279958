"""The processes of the inference slice: the gateway and the replay engine. Each runs until SIGTERM or SIGINT.

Each loads only what is its own: loading is most of the time that the platform takes to start.
"""

import signal
from typing import Final

from journeyman.platform.kit import telemetry
from journeyman.platform.kit.settings import Settings
from journeyman.platform.kit.watchdog import watching

_GRACE_S: Final = 20
"""How long calls in flight may go on after a SIGTERM; then they are cut off and settled by estimate."""


def run_gateway(settings: Settings) -> None:
    """Serve the gateway at ``gateway_host:gateway_port``."""
    import uvloop

    observed = telemetry.setup("gateway", settings)
    # When it has stopped, uvicorn raises the signal that stopped it once more: by default that would end the process
    # before its connections and its telemetry are closed.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: None)
    try:
        uvloop.run(_serve_gateway(settings))
    finally:
        observed.shutdown()


def run_replay_engine(settings: Settings, host: str, port: int) -> None:
    """Serve scripted answers at ``host:port`` under ``/v1``."""
    from aiohttp import web

    from journeyman.platform.replay.app import create_replay_app
    from journeyman.platform.replay.catalog import ReplayCatalog

    observed = telemetry.setup("replay", settings)
    try:
        web.run_app(
            create_replay_app(ReplayCatalog.from_settings(settings)),
            host=host,
            port=port,
            print=None,
            access_log=None,
            # A caller who hangs up must end a scripted delay, as it ends the work of a real engine.
            handler_cancellation=True,
            shutdown_timeout=2,
        )
    finally:
        observed.shutdown()


async def _serve_gateway(settings: Settings) -> None:
    import uvicorn

    from journeyman.platform.inference.gateway.app import create_gateway, gateway_database, instrumented

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
