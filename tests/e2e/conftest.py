from pathlib import Path

import pytest

from journeyman.apps.embedded.stack import EmbeddedStack
from support.command_line import CommandLine
from support.platform import Platform


@pytest.fixture
def journeyman(full_stack: EmbeddedStack, platform: Platform, tmp_path: Path) -> CommandLine:
    return CommandLine(full_stack, tmp_path)
