"""``journeyman up``, ``down`` and ``status``: the platform on this machine."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from journeyman.apps.cli.stack_progress import progress_view
from journeyman.apps.cli.text import counted, duration, size
from journeyman.apps.embedded.datadir import DataDirectory
from journeyman.apps.embedded.errors import DataDirectoryLocked
from journeyman.apps.embedded.processes import ProcessIdentity, identify, wait_for_end
from journeyman.apps.embedded.services import LOOPBACK
from journeyman.apps.exits import CommandError, Exit
from journeyman.apps.roles.settings import load_settings
from journeyman.platform.kit.errors import JourneymanError
from journeyman.platform.kit.settings import Settings

_LONGEST_START_S: Final = 180.0
_LONGEST_STOP_S: Final = 120.0


def _settings(data_dir: Path | None) -> Settings:
    settings = load_settings()
    return settings.model_copy(update={"data_dir": data_dir.expanduser().absolute()}) if data_dir else settings


def up(data_dir: Path | None, port: int | None, workers: int | None, *, detach: bool) -> Exit:
    """Start the stack; in the foreground until Ctrl-C, detached until it is ready."""
    settings = _settings(data_dir)
    if port is None and "api_port" in settings.model_fields_set:
        port = settings.api_port
    holder = DataDirectory(settings.data_dir).holder()
    if holder is not None:
        raise DataDirectoryLocked(
            f"Journeyman already runs on {settings.data_dir} (pid {holder}). Use it (`journeyman status` shows where), "
            "stop it with `journeyman down`, or choose another directory with --data-dir.",
            pid=holder,
        )
    return _up_detached(settings, port, workers) if detach else _up(settings, port, workers)


def _up(settings: Settings, port: int | None, workers: int | None) -> Exit:
    from journeyman.apps.embedded.stack import EmbeddedStack
    from journeyman.apps.embedded.supervisor import supervise

    view = progress_view(sys.stdout)

    def show() -> None:
        view.update([part.as_json() for part in stack.parts], stack.status)

    def ready() -> None:
        view.finish()
        print(_summary(stack.as_json(), settings), flush=True)
        print("Ctrl-C stops it.", flush=True)

    async def run() -> bool:
        return await supervise(stack, ready)

    stack = EmbeddedStack(
        settings.data_dir, settings=settings, workers=workers, api_port=port, usual_ports=True, on_change=show
    )
    try:
        was_ready = asyncio.run(run())
    finally:
        view.finish()
    print("Stopped." if was_ready else "Stopped before it was ready.", flush=True)
    return Exit.OK if was_ready else Exit.INTERRUPTED


def _up_detached(settings: Settings, port: int | None, workers: int | None) -> Exit:
    """Start a supervisor of its own session, and follow what it writes down until it is ready."""
    directory = DataDirectory(settings.data_dir)
    directory.create()
    command = [sys.executable, "-P", "-m", "journeyman.apps.cli.main", "up", "--data-dir", str(directory.root)]
    command += ["--port", str(port)] if port is not None else []
    command += ["--workers", str(workers)] if workers is not None else []
    log_path = directory.logs / "supervisor.log"
    with log_path.open("ab") as log:
        log_start = log.tell()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=directory.root,
            start_new_session=True,
        )
    view = progress_view(sys.stdout)
    try:
        state = _follow(directory, process, view.update)
    except KeyboardInterrupt:
        process.terminate()
        process.wait(_LONGEST_STOP_S)
        raise
    finally:
        view.finish()
    if state is None:
        if process.poll() is None:
            process.terminate()
        raise CommandError(_why_not(directory, process, log_path, log_start), Exit.PLATFORM)
    print(_summary(state, settings))
    print("It runs in the background; stop it with: journeyman down")
    return Exit.OK


def _follow(
    directory: DataDirectory, process: "subprocess.Popen[bytes]", show: Callable[[Sequence[dict[str, Any]], str], None]
) -> dict[str, Any] | None:
    """The state of the supervisor once it is ready, or None when it ended or took too long."""
    deadline = time.monotonic() + _LONGEST_START_S
    while process.poll() is None and time.monotonic() < deadline:
        state = directory.read_state()
        if state is not None and state.get("pid") == process.pid:
            show(state.get("parts", []), state.get("status", ""))
            if state.get("status") == "ready":
                return state
        time.sleep(0.05)
    return None


def _why_not(directory: DataDirectory, process: "subprocess.Popen[bytes]", log_path: Path, log_start: int) -> str:
    """What kept the supervisor from getting ready: as it wrote it down, or its last words."""
    state = directory.read_state()
    if state is not None and state.get("pid") == process.pid and state.get("error"):
        return str(state["error"])
    with log_path.open("rb") as log:
        log.seek(log_start)
        said = log.read()[-4000:].decode("utf-8", "replace").strip()
    return said or f"The supervisor ended without a word; see {directory.logs}."


def _summary(state: dict[str, Any], settings: Settings) -> str:
    urls = state["urls"]
    lines = [
        f"Journeyman is ready: {urls['api']}",
        f"  API key   {Path(state['data_dir']) / 'admin.key'}",
        f"  Engine    {_engine(state)}",
        f"  Data      {state['data_dir']} (logs in {Path(state['data_dir']) / 'logs'})",
    ]
    if settings.sandbox_allow_unenforced_limits:
        lines.append("  Sandboxes run although some limits may not be enforced; `journeyman status` lists them.")
    return "\n".join(lines)


def _engine(state: dict[str, Any]) -> str:
    if state.get("engine") == "replay":
        return "replay: scripted answers for the bundled demos; set JOURNEYMAN_MODEL_BASE_URL for a real model"
    return f"model {state.get('model')}"


def down(data_dir: Path | None, timeout_s: float | None) -> Exit:
    """Stop the stack of the data directory and wait until it is gone. One that does not run is no error."""
    directory = DataDirectory(_settings(data_dir).data_dir)
    pid = directory.holder()
    supervisor = identify(pid) if pid is not None else None
    if supervisor is None:
        print(f"Nothing runs on {directory.root}.")
        return Exit.OK
    try:
        os.kill(supervisor.pid, signal.SIGTERM)
    except ProcessLookupError:
        pass
    except PermissionError:
        raise CommandError(
            f"The stack on {directory.root} (pid {supervisor.pid}) belongs to another user; stop it as that user."
        ) from None
    limit = timeout_s or _LONGEST_STOP_S
    if not wait_for_end([supervisor], limit):
        raise CommandError(
            f"The stack (pid {supervisor.pid}) still runs after {limit:.0f} s. Its logs are in {directory.logs}; "
            f"`kill -9 {supervisor.pid}` ends it with everything it started, and the next start goes on from there.",
            Exit.PLATFORM,
        )
    print(f"Stopped (pid {supervisor.pid}).")
    return Exit.OK


def status(data_dir: Path | None, *, as_json: bool) -> Exit:
    """What runs, checked and not only read; exit code 0 only when all of it is ready."""
    settings = _settings(data_dir)
    report = inspect_stack(DataDirectory(settings.data_dir))
    report["sandboxes"] = _sandboxes(settings)
    if as_json:
        import json

        print(json.dumps(report, indent=2))
    else:
        _print_status(report)
    return Exit.OK if report["status"] == "ready" else Exit.PLATFORM


def inspect_stack(directory: DataDirectory) -> dict[str, Any]:
    """What ``stack.json`` says, corrected by what really runs."""
    state = directory.read_state() or {}
    pid = directory.holder()
    running = pid is not None
    report: dict[str, Any] = {
        "status": "stopped",
        "error": None,
        "pid": pid,
        "data_dir": str(directory.root),
        "version": state.get("version"),
        "started_at": state.get("started_at") if running else None,
        "engine": state.get("engine"),
        "model": state.get("model"),
        "urls": state.get("urls", {}) if running else {},
        "parts": [],
        "disk_free_bytes": _disk_free(directory.root),
    }
    if not running:
        report["error"] = state.get("error")
        return report
    if state.get("pid") != pid:
        report["status"] = "starting"
        return report
    parts = state.get("parts", [])
    for part in parts:
        if part["pid"] is not None and not ProcessIdentity(part["pid"], part["start_ticks"]).alive:
            part |= {"status": "restarting", "pid": None, "start_ticks": None, "detail": "it just ended"}
    report["parts"] = parts
    report["status"] = state["status"]
    if report["status"] == "ready" and any(part["status"] != "ready" for part in parts):
        report["status"] = "degraded"
    return report


def _disk_free(path: Path) -> int | None:
    while not path.exists() and path != path.parent:
        path = path.parent
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None


def _sandboxes(settings: Settings) -> dict[str, Any]:
    """What this machine enforces on sandboxes."""
    from dataclasses import asdict

    from journeyman.platform.sandboxes.local import LocalSandboxDriver

    async def ask() -> dict[str, Any]:
        driver = LocalSandboxDriver(settings.sandbox_dir)
        try:
            found = await driver.report()
        finally:
            await driver.close()
        return asdict(found) | {
            "unenforced": found.unenforced,
            "allow_unenforced_limits": settings.sandbox_allow_unenforced_limits,
        }

    try:
        return asyncio.run(ask())
    except (OSError, JourneymanError) as error:
        return {"driver": "local", "error": str(error), "limits": [], "isolation": [], "unenforced": []}


def _print_status(report: dict[str, Any]) -> None:
    pid = f" (pid {report['pid']})" if report["pid"] else ""
    print(f"{report['status']}{pid}  {report['data_dir']}")
    if report["error"]:
        print(f"The last start failed: {report['error']}")
    for name, url in report["urls"].items():
        print(f"  {name:<10} {url}")
    if report["status"] != "stopped":
        print(f"  engine     {_engine(report)}")
    if report["disk_free_bytes"] is not None:
        print(f"  disk free  {size(report['disk_free_bytes'])}")
    if report["parts"]:
        print()
    for part in report["parts"]:
        facts = [f"pid {part['pid']}"] if part["pid"] else []
        facts += [f"ready in {duration(part['seconds'])}"] if part["seconds"] is not None else []
        facts += [counted(part["restarts"], "restart")] if part["restarts"] else []
        facts += [part["detail"]] if part["detail"] else []
        print(f"  {part['name']:<14} {part['status']:<11} {', '.join(facts)}")
    print("\nLoopback, by who on this machine may use it")
    for who, what in LOOPBACK.items():
        print(f"  {who:<14} {what}")
    sandboxes = report["sandboxes"]
    print(f"\nSandboxes ({sandboxes['driver']})")
    if sandboxes.get("error"):
        print(f"  {sandboxes['error']}")
    for limit in (*sandboxes["isolation"], *sandboxes["limits"]):
        mark = "yes" if limit["enforced"] else "NO"
        note = f" — {limit['note']}" if limit["note"] else ""
        print(f"  {limit['name']:<14} {mark:<4} {limit['how']}{note}")
    if sandboxes["unenforced"] and not sandboxes.get("allow_unenforced_limits"):
        print("  Sandboxes are refused here unless JOURNEYMAN_SANDBOX_ALLOW_UNENFORCED_LIMITS=true.")
