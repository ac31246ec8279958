"""``journeyman api``: the REST process."""

import socket
from typing import Final

import uvicorn
import uvloop
from fastapi import FastAPI

from journeyman.platform.api.app import create_app
from journeyman.platform.events.stream import EventFeed
from journeyman.platform.http.dependencies import Resources
from journeyman.platform.kit import telemetry
from journeyman.platform.kit.settings import Settings
from journeyman.platform.kit.watchdog import watching

_GRACE_S: Final = 10
"""How long requests may go on after a SIGTERM. Event streams are ended at once; their clients come back."""


class ApiServer(uvicorn.Server):
    """Ends event streams when it stops, which would otherwise keep it from stopping."""

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._app = app

    @property
    def resources(self) -> Resources:
        """What the process has, once it has started."""
        resources: Resources = self._app.state.resources
        return resources

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self.resources[EventFeed].close()
        await super().shutdown(sockets)


def api_server(settings: Settings) -> ApiServer:
    """A server for ``api_host:api_port``, not started yet."""
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        host=settings.api_host,
        port=settings.api_port,
        http="httptools",
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        # Longer than clients keep idle connections, so that none is closed just as a request goes out on it.
        timeout_keep_alive=75,
        timeout_graceful_shutdown=_GRACE_S,
    )
    return ApiServer(config, app)


def run_api(settings: Settings) -> None:
    """Serve the REST API at ``api_host:api_port`` until SIGTERM or SIGINT."""
    observed = telemetry.setup("api", settings)
    try:
        uvloop.run(_serve(settings))
    finally:
        observed.shutdown()


async def _serve(settings: Settings) -> None:
    async with watching("api", warn_after_s=settings.loop_stall_warn_s, exit_after_s=settings.loop_stall_exit_s):
        await api_server(settings).serve()
