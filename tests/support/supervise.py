"""A supervisor as a process of its own: ``python -m support.supervise DATA_DIR JOURNAL PART…``.

A PART is the name of a server, or ``stand-in:NAME``; stand-ins keep their ports. Prints ``ready`` and waits for a signal.
"""

import asyncio
import sys
from pathlib import Path

from journeyman.apps.embedded.stack import EmbeddedStack
from journeyman.apps.embedded.supervisor import supervise
from journeyman.platform.kit.errors import JourneymanError
from journeyman.platform.kit.settings import Settings
from support.stand_ins import stand_in


async def main() -> None:
    data_dir, journal = Path(sys.argv[1]), Path(sys.argv[2])
    further = [stand_in(name.partition(":")[2], journal) for name in sys.argv[3:] if name.startswith("stand-in:")]
    parts = [name for name in sys.argv[3:] if ":" not in name]
    stack = EmbeddedStack(data_dir, parts=parts, further=further, settings=Settings(data_dir=data_dir))
    await supervise(stack, lambda: print("ready", flush=True))


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except JourneymanError as error:
        sys.exit(error.message)
