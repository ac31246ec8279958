"""Object storage of the embedded stack: SeaweedFS in its one-process form, reached through S3 only.

Its inner ports are in a network namespace of their own, so that other users of the machine cannot read around S3.
An acknowledged put is with the kernel before the answer: it survives the death of the process, tested with ``kill -9``.
Asked to stop, the process would take 15 s and more to say good-bye to a cluster it does not have (measured); killing
it loses nothing and takes none.
"""

import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final

from journeyman.apps.embedded.errors import MachineUnfit
from journeyman.apps.embedded.launching import program, service_environment
from journeyman.apps.embedded.probes import http_ready
from journeyman.apps.embedded.specs import ProcessSpec

PORTS: Final = (
    "objects",
    "objects-grpc",
    "objects-master",
    "objects-master-grpc",
    "objects-volume",
    "objects-volume-grpc",
    "objects-filer",
    "objects-filer-grpc",
    "objects-admin",
    "objects-admin-grpc",
)


class Objects:
    def __init__(self, root: Path, ports: dict[str, int], secrets: dict[str, str]) -> None:
        self._root = root
        self._ports = ports
        self._secrets = secrets

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self._ports['objects']}"

    def spec(self) -> ProcessSpec:
        return ProcessSpec(
            name="objects",
            title="Object storage (SeaweedFS)",
            argv=[
                program("weed"),
                "-logtostderr=true",
                f"-config_dir={self._root}",
                "mini",
                f"-options={self._root / 'options'}",
            ],
            env=service_environment(),
            ready=http_ready(self._ports["objects"], "/status"),
            # S3 asks for keys. Its inner ports do not: the filer's lists all objects, the master's signs tokens for them.
            gated_ports=[self._ports["objects"]],
            prepare=self._prepare,
            stop_signal=signal.SIGKILL,
        )

    async def _prepare(self) -> None:
        """Write the configuration; all of it is readable for the owner only. Remove sockets of an earlier life."""
        data = self._root / "data"
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        signing = self._secrets["objects_signing"]
        tables = ("jwt.signing", "jwt.signing.read", "jwt.filer_signing", "jwt.filer_signing.read")
        self._write("security.toml", "\n".join(f'[{table}]\nkey = "{table}.{signing}"' for table in tables))
        identity = {
            "name": "journeyman",
            "credentials": [{"accessKey": self._secrets["s3_access_key"], "secretKey": self._secrets["s3_secret_key"]}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        self._write("s3.json", json.dumps({"identities": [identity]}))
        port = self._ports
        options = {
            "dir": data,
            "ip": "127.0.0.1",
            "ip.bind": "127.0.0.1",
            "master.port": port["objects-master"],
            "master.port.grpc": port["objects-master-grpc"],
            "master.telemetry": "false",
            "master.volumeSizeLimitMB": 1024,
            "master.volumePreallocate": "false",
            "volume.port": port["objects-volume"],
            "volume.port.grpc": port["objects-volume-grpc"],
            "volume.minFreeSpace": "200MiB",
            "filer.port": port["objects-filer"],
            "filer.port.grpc": port["objects-filer-grpc"],
            "filer.localSocket": self._socket("filer"),
            "s3.port": port["objects"],
            "s3.port.grpc": port["objects-grpc"],
            "s3.port.iceberg": 0,
            "s3.port.lance": 0,
            "s3.iam": "false",
            "s3.config": self._root / "s3.json",
            "s3.localSocket": self._socket("s3"),
            "webdav": "false",
            "admin.ui": "false",
            "admin.port": port["objects-admin"],
            "admin.port.grpc": port["objects-admin-grpc"],
            "admin.password": f"admin.{signing}",
        }
        self._write("options", "".join(f"{name}={value}\n" for name, value in options.items()))
        self.remove_sockets()
        left = [path for path in self._sockets() if path.is_symlink() or path.exists()]
        if left:
            raise MachineUnfit(
                f"{left[0]} belongs to another account of this machine, and the object store would talk to whatever listens "
                "there. Remove it and start again."
            )

    def _socket(self, name: str) -> Path:
        """Beside the data where the name is short enough for a Unix socket, else where SeaweedFS itself puts it."""
        path = self._root / f"{name}.sock"
        return path if len(os.fsencode(path)) < 100 else Path(f"/tmp/seaweedfs-{name}-{self._ports['objects']}.sock")  # noqa: S108

    def remove_sockets(self) -> None:
        """SeaweedFS puts sockets into /tmp whatever it is told, named by its ports, and leaves them there."""
        for path in self._sockets():
            with suppress(OSError):
                if path.lstat().st_uid == os.geteuid():
                    path.unlink()
        for name in ("filer", "s3"):
            self._socket(name).unlink(missing_ok=True)

    def _sockets(self) -> list[Path]:
        kinds = ("master", "volume", "filer", "s3", "admin")
        names = [f"{kind}{part}-{port}" for kind in kinds for part in ("-grpc", "") for port in self._ports.values()]
        return [Path(f"/tmp/seaweedfs-{name}.sock") for name in names]  # noqa: S108  the name is theirs

    def _write(self, name: str, text: str) -> None:
        path = self._root / name
        path.unlink(missing_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(text + "\n")
