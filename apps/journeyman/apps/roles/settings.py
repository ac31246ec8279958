"""The settings that a process starts with."""

from pydantic import ValidationError

from journeyman.apps.exits import CommandError
from journeyman.platform.kit.settings import Settings


def load_settings() -> Settings:
    """Read the settings of this process from its environment.

    Raises :class:`CommandError` that names each wrong setting, without its value.
    """
    try:
        return Settings()
    except ValidationError as error:
        lines = ["The settings cannot be used:"]
        for entry in error.errors(include_url=False, include_input=False, include_context=False):
            name = ".".join(str(part) for part in entry["loc"])
            lines.append(f"  JOURNEYMAN_{name.upper()}: {entry['msg']}" if name else f"  {entry['msg']}")
        raise CommandError("\n".join(lines)) from None
