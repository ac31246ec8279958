"""``journeyman vectors``: Qdrant's local storage, served by one process."""

import os

from journeyman.apps.exits import CommandError
from journeyman.platform.memory.vectors_server import main


def run_vectors() -> None:
    """Serve until SIGTERM or SIGINT. Raises :class:`CommandError` that names the missing variables."""
    missing = [name for name in ("PATH", "PORT", "KEY") if not os.environ.get(f"JOURNEYMAN_VECTORS_{name}")]
    if missing:
        raise CommandError(
            f"Set {', '.join(f'JOURNEYMAN_VECTORS_{name}' for name in missing)}: where to keep the vectors and how to serve them."
        )
    main()
