"""Fetch uv's wheel from PyPI with nothing but the standard library: for a Python without venv and without pip.

Usage: ``python fetch_uv.py DIRECTORY``. Reads ``UV_DEFAULT_INDEX``, ``UV_INDEX_URL`` or ``PIP_INDEX_URL``; checks the digest.
"""

import hashlib
import json
import os
import pathlib
import platform
import re
import sys
import urllib.parse
import urllib.request
import zipfile

JSON = "application/vnd.pypi.simple.v1+json"


def wheel_tags() -> list[str]:
    """Platform tags of uv's wheels for this machine, best first. The statically linked one runs on any C library."""
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine().lower())
    return [f"musllinux_1_1_{machine}", f"manylinux_2_17_{machine}", f"manylinux_2_28_{machine}"]


def main(directory: pathlib.Path) -> None:
    index = next(
        (os.environ[name] for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL") if os.environ.get(name)),
        "https://pypi.org/simple",
    )
    page_url = index.rstrip("/") + "/uv/"
    with urllib.request.urlopen(urllib.request.Request(page_url, headers={"Accept": JSON}), timeout=60) as answer:
        files = json.load(answer)["files"]
    wheels = [
        entry for entry in files if re.fullmatch(r"uv-[0-9.]+-.*\.whl", entry["filename"]) and not entry.get("yanked")
    ]
    wheels.sort(key=lambda entry: tuple(int(part) for part in entry["filename"].split("-")[1].split(".")), reverse=True)
    chosen = next((entry for tag in wheel_tags() for entry in wheels if tag in entry["filename"]), None)
    if chosen is None:
        sys.exit(f"PyPI has no uv for {platform.machine()} ({platform.system()}).")
    with urllib.request.urlopen(urllib.parse.urljoin(page_url, chosen["url"]), timeout=300) as answer:
        body = answer.read()
    if hashlib.sha256(body).hexdigest() != chosen["hashes"]["sha256"]:
        sys.exit(f"{chosen['filename']} does not have the digest that the index names; not installed.")
    directory.mkdir(parents=True, exist_ok=True)
    archive = directory / "uv.whl"
    archive.write_bytes(body)
    with zipfile.ZipFile(archive) as wheel:
        member = next(name for name in wheel.namelist() if name.endswith(".data/scripts/uv"))
        (directory / "uv").write_bytes(wheel.read(member))
    archive.unlink()
    (directory / "uv").chmod(0o755)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
