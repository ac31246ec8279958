"""What ``journeyman deploy`` does: talks to Temporal itself, as the roles do, with their settings."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

from temporalio.client import Client
from temporalio.service import RPCError

from journeyman.apps.cli.session import print_json, print_table
from journeyman.apps.cli.text import counted
from journeyman.apps.embedded.datadir import DataDirectory
from journeyman.apps.exits import CommandError, Exit
from journeyman.apps.roles.settings import load_settings
from journeyman.platform.kit import deployments
from journeyman.platform.kit.settings import Settings
from journeyman.platform.kit.temporal import connect
from journeyman.workflows.fingerprint import fingerprint

R = TypeVar("R")


def status(data_dir: Path | None, *, as_json: bool) -> Exit:
    found = _run(data_dir, deployments.versions)
    if as_json:
        print_json([asdict(version) | {"stranded": version.stranded} for version in found])
    else:
        rows = [
            (
                version.build_id,
                "current" if version.current else "",
                str(version.workers),
                str(version.tasks),
                "NO WORKER: its tasks stand still" if version.stranded else "",
            )
            for version in found
        ]
        print_table(("version", "", "workers", "running tasks", ""), rows)
        if any(version.stranded for version in found):
            print("Start workers of that version, or move its tasks: journeyman deploy move VERSION")
    return Exit.FAILED if any(version.stranded for version in found) else Exit.OK


def current(data_dir: Path | None, version: str | None) -> Exit:
    build_id = version or fingerprint()
    _run(data_dir, lambda client: deployments.make_current(client, build_id))
    print(f"New tasks begin on version {build_id} from now on.")
    return Exit.OK


def move(data_dir: Path | None, version: str | None) -> Exit:
    moved = _run(data_dir, lambda client: deployments.move(client, away_from=version))
    print(f"Moved {counted(moved, 'running task')} to the current version.")
    return Exit.OK


def _run(data_dir: Path | None, action: Callable[[Client], Awaitable[R]]) -> R:
    async def main() -> R:
        settings = _settings(data_dir)
        try:
            client = await connect(settings)
        except RuntimeError as error:
            raise CommandError(
                f"Temporal does not answer at {settings.temporal_address}. Set JOURNEYMAN_TEMPORAL_ADDRESS and "
                "JOURNEYMAN_TEMPORAL_NAMESPACE, or start the local stack with `journeyman up`.",
                Exit.PLATFORM,
            ) from error
        try:
            return await action(client)
        except RPCError as error:
            raise CommandError(f"Temporal refused: {error}", Exit.PLATFORM) from error

    return asyncio.run(main())


def _settings(data_dir: Path | None) -> Settings:
    """Where Temporal is: as the environment says, else the local stack's."""
    settings = load_settings()
    if data_dir is not None or "temporal_address" not in settings.model_fields_set:
        state = DataDirectory(data_dir or settings.data_dir).read("stack.json") or {}
        address = state.get("urls", {}).get("temporal")
        if address:
            return settings.model_copy(update={"temporal_address": address})
    return settings
