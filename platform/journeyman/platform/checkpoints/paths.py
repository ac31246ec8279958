"""Paths of a workspace as clients see them, and as a snapshot has them."""

from typing import Final

ROOT: Final = "workspace/"
"""Where the workspace is in a snapshot; what is beside it (``artifacts/``) is handed over as artifacts."""


def normal(path: str) -> str:
    """A path as the client wrote it, relative to the workspace."""
    return path.strip("/").removeprefix(ROOT) if path.startswith("/" + ROOT) else path.strip("/")


def relative(path: str) -> str:
    """The path of an entry as the client sees it: relative to the workspace, valid text whatever its bytes are."""
    return valid_text(path.removeprefix(ROOT))


def valid_text(text: str) -> str:
    """Text in which bytes that are no UTF-8 were kept as surrogates, with U+FFFD for each: JSON cannot hold them."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
