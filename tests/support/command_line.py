"""The ``journeyman`` command against the running platform, as a process of its own."""

import asyncio
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from journeyman.apps.embedded.stack import EmbeddedStack


@dataclass
class Result:
    code: int
    out: str
    err: str


class CommandLine:
    """Runs ``journeyman …`` as a process of its own, against the running platform."""

    def __init__(self, stack: EmbeddedStack, home: Path) -> None:
        self._environment = {
            **os.environ,
            "JOURNEYMAN_URL": stack.settings.api_url,
            "JOURNEYMAN_API_KEY": (stack.settings.data_dir / "admin.key").read_text().strip(),
            "JOURNEYMAN_DATA_DIR": str(home),
        }

    async def __call__(self, *arguments: str, stdin: bytes | None = None) -> Result:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "journeyman.apps.cli.main", *arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self._environment,
        )
        out, err = await process.communicate(stdin)
        assert process.returncode is not None
        return Result(process.returncode, out.decode(), err.decode())
