"""A fingerprint of the workflow code: what a history was recorded with, and so what can replay it.

It covers the modules of this package that workflow code consists of, and of other modules of ours exactly the functions,
classes and constants that workflow code reaches. Comments, docstrings and layout do not count; activities do not either,
because their results are in the history.
"""

import ast
import hashlib
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

WORKFLOW_MODULES: Final = (
    "journeyman.workflows.task_workflow",
    "journeyman.workflows.subtask_runner",
    "journeyman.workflows.subtask_workflow",
    "journeyman.workflows.thread_run",
    "journeyman.workflows.control",
    "journeyman.workflows.activity_calls",
)
"""Taken whole. From here on, imports are followed to the names that are used."""

_OURS: Final = "journeyman."
_MODULE: Final = "*"
"""In the place of a name: the module itself was imported."""
_IGNORED_FIELDS: Final = frozenset({"ctx", "kind", "type_comment", "type_ignores"})


@cache
def fingerprint() -> str:
    """16 hex digits. The same for every supported Python."""
    digest = hashlib.sha256()
    for part in covered_code():
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:16]


def covered_code() -> list[str]:
    """What the fingerprint covers, one definition an entry as ``module:name = tree``, sorted."""
    cover = _Cover()
    for module in WORKFLOW_MODULES:
        cover.take_whole(module)
    return sorted(f"{place} = {tree}" for place, tree in cover.trees.items())


@dataclass
class _Module:
    definitions: dict[str, ast.stmt]
    imports: dict[str, tuple[str, str]]
    """Local name to module and name there, for what is imported from our own code."""


@dataclass
class _Cover:
    trees: dict[str, str] = field(default_factory=dict)

    def take_whole(self, name: str) -> None:
        module = _parsed(name)
        for definition in module.definitions:
            self.take(name, definition)

    def take(self, module_name: str, name: str) -> None:
        """Take one definition and, from there, everything of ours that it names."""
        place = f"{module_name}:{name}"
        if place in self.trees:
            return
        module = _parsed(module_name)
        if name not in module.definitions:
            if name in module.imports:
                self.take(*module.imports[name])
            return
        node = module.definitions[name]
        self.trees[place] = _dumped(node)
        for used, attribute in _names_in(node):
            if used in module.definitions:
                self.take(module_name, used)
            elif used in module.imports:
                origin, there = module.imports[used]
                self.take(origin, attribute if there == _MODULE else there)


@cache
def _parsed(name: str) -> _Module:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise ValueError(f"the source of {name} is needed for the fingerprint of the workflow code, and is not there")
    module = _Module({}, {})
    _collect(ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body, module)
    return module


def _collect(body: list[ast.stmt], module: _Module) -> None:
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                module.definitions[node.name] = node
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                module.definitions[name] = node
            case ast.ImportFrom(module=str(origin), level=0) if origin.startswith(_OURS):
                for alias in node.names:
                    module.imports[alias.asname or alias.name] = _origin(origin, alias.name)
            case ast.With() | ast.If():
                # ``with workflow.unsafe.imports_passed_through()`` and ``if TYPE_CHECKING``.
                _collect(node.body, module)
            case _:
                pass


def _origin(module: str, name: str) -> tuple[str, str]:
    """Module and name of what is imported; :data:`_MODULE` for a module that is imported as a whole."""
    spec = find_spec(module)
    folders = spec.submodule_search_locations if spec is not None else None
    whole = any((Path(folder) / f"{name}.py").is_file() for folder in folders or ())
    return (f"{module}.{name}", _MODULE) if whole else (module, name)


def _names_in(node: ast.AST) -> list[tuple[str, str]]:
    """The names that are used, each with the attribute that is taken of it, if any."""
    found: set[tuple[str, str]] = set()
    for each in ast.walk(node):
        match each:
            case ast.Name(id=name) | ast.Constant(value=str(name)):  # annotations may be quoted
                found.add((name, ""))
            case ast.Attribute(value=ast.Name(id=name), attr=attribute):
                found.add((name, attribute))
            case _:
                pass
    return sorted(found)


def _dumped(node: Any) -> str:
    """The tree as text. Fields that are empty are left out: newer Pythons add some."""
    if isinstance(node, ast.AST):
        fields = []
        for name, value in ast.iter_fields(node):
            if name in _IGNORED_FIELDS or value is None or value == []:
                continue
            if name == "body" and isinstance(value, list):
                value = [each for each in value if not _is_documentation(each)]  # noqa: PLW2901  without docstrings
            fields.append(f"{name}={_dumped(value)}")
        return f"{type(node).__name__}({', '.join(fields)})"
    if isinstance(node, list):
        return f"[{', '.join(_dumped(each) for each in node)}]"
    return repr(node)


def _is_documentation(node: Any) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
