"""The shape of the repository: path roots that are no packages, layers, what the wheel holds, what the tree must not hold."""

import ast
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOTS = ("apps", "workflows", "platform", "agents")


def run(*command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=170)


def tracked(*patterns: str) -> list[Path]:
    """Files under version control, or, in an unpacked source archive, the files that are there."""
    listed = run("git", "ls-files", "-z", "--", *patterns)
    if listed.returncode != 0:
        return [
            path for pattern in patterns for path in ROOT.rglob(pattern) if path.is_file() and ".venv" not in path.parts
        ]
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


@pytest.mark.parametrize("root", ROOTS)
def test_roots_and_namespace_portions_are_no_packages(root: str) -> None:
    assert not (ROOT / root / "__init__.py").exists()
    assert not (ROOT / root / "journeyman" / "__init__.py").exists()
    assert (ROOT / root / "journeyman" / root / "__init__.py").exists()
    assert (ROOT / root / "journeyman" / root / "py.typed").exists()


@pytest.mark.parametrize("module", ["platform", "json", "logging"])
def test_the_standard_library_comes_first_from_the_repository_root(module: str) -> None:
    code = f"import {module}, sysconfig; print({module}.__file__.startswith(sysconfig.get_path('stdlib')))"
    done = run(sys.executable, "-c", code)
    assert done.stdout.strip() == "True", done.stderr


def test_every_folder_of_the_packages_is_one() -> None:
    missing = {
        path.parent
        for root in ROOTS
        for path in tracked(f"{root}/journeyman/{root}/*.py")
        if not (path.parent / "__init__.py").exists() and "workspace" not in path.parts and "demos" not in path.parts
    }
    assert not missing


def test_layers() -> None:
    done = run(str(Path(sys.executable).parent / "lint-imports"), "--no-cache")
    assert done.returncode == 0, done.stdout[-3000:]


def test_modules_stay_readable() -> None:
    """A module above 600 lines is two."""
    long = {
        str(path.relative_to(ROOT)): count
        for root in ROOTS
        for path in tracked(f"{root}/*.py")
        if "workspace" not in path.parts and (count := len(path.read_text().splitlines())) > 600
    }
    assert not long


@pytest.mark.parametrize("name", ["utils", "helpers", "manager", "managers", "common", "misc"])
def test_no_module_named_after_nothing(name: str) -> None:
    assert not [path for root in ROOTS for path in tracked(f"{root}/*.py") if name in (path.stem, path.parent.name)]


def test_nothing_is_left_to_do() -> None:
    """No placeholder, no note to oneself, no swallowed ``NotImplementedError``."""
    word = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b|raise NotImplementedError")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in tracked("*.py", "*.sh", "*.yml", "*.yaml", "*.toml", "Makefile")
        if "workspace" not in path.parts and path != Path(__file__)
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if word.search(line) and "tests" not in path.parts
    ]
    assert not found


def test_type_ignores_carry_their_code() -> None:
    bare = re.compile(r"#\s*type:\s*ignore(?!\[)|#\s*noqa(?!:)")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in tracked("*.py")
        if path != Path(__file__)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if bare.search(line)
    ]
    assert not found


def test_no_path_of_somebodys_machine() -> None:
    home = re.compile(r"/(?:home|Users)/(?!agent\b|user\b|you\b)[a-z][\w.-]+/|/root/(?!\.cache)")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in tracked("*.py", "*.md", "*.yml", "*.yaml", "*.toml", "*.json", "Makefile")
        if path != Path(__file__)
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if "tests" not in path.parts
        and home.search(line)
        and "Dockerfile" not in path.name
        and "etc/passwd" not in line
        and "root:x:0:0" not in line
    ]
    assert not found


def test_nothing_connects_or_reads_settings_at_import() -> None:
    """Module level holds no ``Settings()`` and no engine: resources are built in the lifespan."""
    forbidden = {"Settings", "create_engine", "create_async_engine", "AsyncOpenAI", "QdrantClient"}
    found = []
    for root in ROOTS:
        for path in tracked(f"{root}/*.py"):
            if "workspace" in path.parts:
                continue
            for statement in ast.parse(path.read_text()).body:
                value = getattr(statement, "value", None)
                if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in forbidden:
                    found.append(f"{path.relative_to(ROOT)}:{statement.lineno}")
    assert not found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Names in the wheel as built from the tree."""
    target = tmp_path_factory.mktemp("wheel")
    built = run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target))
    assert built.returncode == 0, built.stderr[-3000:]
    (path,) = target.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        return archive.namelist()


def test_the_wheel_holds_the_portions_and_nothing_at_their_root(wheel: list[str]) -> None:
    tops = {name.split("/")[0] for name in wheel}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"journeyman"}
    assert {name.split("/")[1] for name in wheel if name.startswith("journeyman/")} == set(ROOTS)
    assert "journeyman/__init__.py" not in wheel
    for name in (
        "journeyman/platform/py.typed",
        "journeyman/apps/cli/main.py",
        "journeyman/platform/_migrations/env.py",
        "journeyman/platform/_migrations/versions/0001_first_tables.py",
        "journeyman/platform/demos/fix-failing-test/task.json",
        "journeyman/platform/ledger/prices.json",
        "journeyman/agents/prompts/planner.md",
    ):
        assert name in wheel


def test_the_wheel_holds_no_tests_and_no_leftovers(wheel: list[str]) -> None:
    assert not [name for name in wheel if name.endswith((".pyc", ".log", ".env")) or "__pycache__" in name]
    assert not [name for name in wheel if "/tests/" in name and "/demos/" not in name]


@pytest.mark.parametrize(
    ("module", "planted", "broken"),
    [
        (
            "events/log.py",
            "from journeyman.platform.budgets import service",
            "slices of platform import lower slices only",
        ),
        (
            "tasks/models.py",
            "from journeyman.platform.tasks import service",
            "no circle among slices, none among modules",
        ),
        (
            "../../../agents/journeyman/agents/roles.py",
            "from journeyman.platform.kit import ids",
            "each imports what is below it",
        ),
    ],
)
def test_a_planted_circle_fails_the_check(tmp_path: Path, module: str, planted: str, broken: str) -> None:
    for root in ROOTS:
        shutil.copytree(ROOT / root / "journeyman", tmp_path / root / "journeyman")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / "platform/journeyman/platform" / module).open("a") as file:
        file.write(f"\n{planted}\n")
    command = ["lint-imports", "--no-cache"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(tmp_path / root) for root in ROOTS)}
    checked = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from importlinter.cli import lint_imports_command; sys.argv = sys.argv[1:]; lint_imports_command()",
            *command,
        ],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 1, checked.stdout + checked.stderr
    assert any(broken in line and line.endswith("BROKEN") for line in checked.stdout.splitlines())
