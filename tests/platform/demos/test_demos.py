import io
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from journeyman.platform.demos import catalog, load
from journeyman.platform.demos.synthetic_prices import csv_text
from journeyman.platform.kit.errors import NotFound
from journeyman.platform.replay.script import Script

SLUGS = ["fix-failing-test", "build-cli-tool", "analyse-prices"]
ROOT = Path(__file__).parents[3]


def test_the_catalog_lists_what_is_bundled_first_things_first():
    assert [demo.slug for demo in catalog()] == SLUGS
    for demo in catalog():
        assert load(demo.slug) == demo
        assert demo.title


def test_an_unknown_demo_names_those_there_are():
    with pytest.raises(NotFound, match="fix-failing-test, build-cli-tool, analyse-prices"):
        load("../etc")


@pytest.mark.parametrize("demo", catalog(), ids=lambda demo: demo.slug)
def test_task_and_script_belong_together(demo):
    task = demo.task
    script = Script.model_validate(demo.script)
    assert script.name == demo.slug
    assert script.plays(task["instruction"])
    assert task["acceptance"]
    assert task["workspace"] == {"source": "none" if demo.workspace is None else "archive"}
    assert set(task) <= {"title", "instruction", "workspace", "environment", "acceptance", "budget"}


@pytest.mark.parametrize("demo", catalog(), ids=lambda demo: demo.slug)
def test_what_is_read_can_be_changed_without_harm(demo):
    demo.task.clear()
    assert demo.task


@pytest.mark.parametrize("demo", catalog(), ids=lambda demo: demo.slug)
def test_packing_gives_the_same_bytes_and_all_files(demo):
    packed = demo.pack_workspace()
    assert packed == demo.pack_workspace()
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        entries = {entry.name: entry for entry in archive.getmembers()}
        assert {name: archive.extractfile(entry).read() for name, entry in entries.items()} == {
            name: path.read_bytes() for name, path in demo.files()
        }
    assert all(entry.mtime == 0 and entry.uid == 0 and entry.mode == 0o644 for entry in entries.values())
    assert not any("__pycache__" in name for name in entries)


def test_the_wheel_brings_demos_and_prompts_along(tmp_path):
    code = "import sys; from hatchling.build import build_wheel; build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    for demo in catalog():
        base = f"journeyman/platform/demos/{demo.slug}"
        assert {f"{base}/task.json", f"{base}/script.json"} <= names
        assert {f"{base}/workspace/{name}" for name, _ in demo.files()} <= names
    for name in ("planner", "coder", "reviewer", "workplace"):
        assert f"journeyman/agents/prompts/{name}.md" in names


def test_the_prices_are_those_that_the_generator_gives():
    bundled = dict(load("analyse-prices").files())["prices.csv"].read_text(encoding="utf-8")
    assert bundled == csv_text()
    dates = [line.partition(",")[0] for line in bundled.splitlines()[1:]]
    assert len(dates) - len(set(dates)) == 1
    assert dates == sorted(dates)
