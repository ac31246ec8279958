"""The agent's modules: standard library alone, small, and no circle among them."""

import ast
import graphlib
import sys
from pathlib import Path

import pytest

from journeyman.platform.sandboxes import agent
from journeyman.platform.sandboxes.agent.protocol import MAX_HEADER, MAX_PAYLOAD, SIZES, loads, pack

MODULES = sorted(Path(agent.__file__).parent.glob("*.py"))


def imports(path: Path) -> tuple[set[str], set[str]]:
    """Siblings, and top-level names of other packages."""
    siblings, others = set(), set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            others |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level:
            siblings.add(str(node.module))
        elif isinstance(node, ast.ImportFrom):
            others.add(str(node.module).partition(".")[0])
    return siblings, others


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_module_imports_the_standard_library_and_its_siblings(path: Path) -> None:
    siblings, others = imports(path)
    assert siblings <= {module.stem for module in MODULES}
    assert others - ({"agent"} if path.stem == "boot" else set()) <= sys.stdlib_module_names
    assert len(path.read_text().splitlines()) <= 350


def test_there_is_no_circle_of_modules() -> None:
    graph = {path.stem: imports(path)[0] for path in MODULES}
    assert tuple(graphlib.TopologicalSorter(graph).static_order())
    with pytest.raises(graphlib.CycleError):
        tuple(graphlib.TopologicalSorter(graph | {"protocol": {"loop"}}).static_order())


def test_a_frame_is_two_sizes_a_header_and_a_payload() -> None:
    frame = pack({"op": "ping", "name": "\udcff文"}, b"payload")
    header_size, payload_size = SIZES.unpack_from(frame)
    assert loads(frame[SIZES.size : SIZES.size + header_size]) == {"op": "ping", "name": "\udcff文"}
    assert frame[-payload_size:] == b"payload"
    for header, payload in (({"op": "x" * MAX_HEADER}, b""), ({}, bytes(MAX_PAYLOAD + 1))):
        with pytest.raises(ValueError, match="at most"):
            pack(header, payload)
