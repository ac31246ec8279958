"""The syntax tree of a shell script, by tree-sitter-bash, within bounds of time."""

import re
from typing import Final

import tree_sitter_bash
from tree_sitter import Language, Node, Parser, Point

MAX_BRACKETS: Final = 200

_LANGUAGE: Final = Language(tree_sitter_bash.language())


def parse(source: bytes) -> Node | None:
    """The syntax tree; None for what is not bash. Ends at the first error: recovery from errors takes quadratic time."""

    def piece(offset: int, _point: Point) -> bytes:
        return source[offset : offset + 65_536]

    def stop(_offset: int, has_error: bool) -> bool:
        return has_error

    try:
        root = Parser(_LANGUAGE).parse(piece, encoding="utf8", progress_callback=stop).root_node
    except ValueError:  # stopped
        return None
    return None if root.has_error else root


def too_nested(script: str) -> bool:
    """Whether brackets are nested so deeply that parsing takes quadratic time."""
    depth = 0
    for bracket in re.findall(r"[(){}\[\]]", script):
        depth = max(0, depth + (1 if bracket in "({[" else -1))
        if depth > MAX_BRACKETS:
            return True
    return False
