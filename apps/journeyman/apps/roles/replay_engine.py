"""``journeyman replay-engine``: scripted answers for the bundled demos, in the place of a model."""

from aiohttp import web

from journeyman.platform.kit import telemetry
from journeyman.platform.kit.settings import Settings
from journeyman.platform.replay.app import create_replay_app
from journeyman.platform.replay.catalog import ReplayCatalog


def run_replay_engine(settings: Settings, host: str, port: int) -> None:
    """Serve scripted answers at ``host:port`` under ``/v1`` until SIGTERM or SIGINT."""
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
