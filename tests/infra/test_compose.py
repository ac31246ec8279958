"""The production-like stack as written down: no secret with a default, nothing open to the network, nothing privileged."""

import errno
import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from journeyman.apps.cli.main import app
from journeyman.platform.kit.settings import Settings
from journeyman.platform.sandboxes import seccomp

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OWN = {name: service for name, service in SERVICES.items() if service["image"].startswith("${JOURNEYMAN_IMAGE")}
ONE_SHOT = {"migrate", "temporal-schema", "temporal-namespace"}
_VARIABLE = re.compile(r"\$\{([A-Z0-9_]+)(:[-?+][^}]*)?\}")


def secret(name: str) -> bool:
    return name.endswith(("PASSWORD", "SECRET", "_KEY"))


def test_every_part_of_the_architecture_is_there() -> None:
    roles = {"api", "gateway", "migrate", "embeddings", "replay-engine"}
    workers = {f"worker-{queue}" for queue in ("orchestration", "sandboxes")}
    assert set(OWN) == roles | workers
    assert {"postgres", "temporal", "temporal-postgres", "objects", "qdrant", "otel-collector"} <= set(SERVICES)


@pytest.mark.parametrize("name", SERVICES)
def test_services_tell_whether_they_are_well(name: str) -> None:
    service = SERVICES[name]
    assert (name in ONE_SHOT) != ("healthcheck" in service)
    assert service["restart"] == ("on-failure:5" if name in ONE_SHOT else "unless-stopped")


@pytest.mark.parametrize("name", SERVICES)
def test_nothing_is_privileged_and_images_are_pinned(name: str) -> None:
    service = SERVICES[name]
    assert "privileged" not in service
    assert "cap_add" not in service
    assert service.get("network_mode") is None
    assert "no-new-privileges:true" in service["security_opt"]
    assert "docker.sock" not in str(service.get("volumes"))
    if name not in OWN:
        assert re.fullmatch(r"[\w./-]+:v?\d[\w.]*", service["image"])
    opened = {option for option in service["security_opt"] if "unconfined" in option}
    # One alone does not do: bubblewrap was seen to fail without either of the filter and systempaths.
    needed = {"apparmor=unconfined", "systempaths=unconfined"}
    assert opened == (needed if name == "worker-sandboxes" else set())


def test_the_filter_around_sandboxes_refuses_all_that_making_one_does_not_take() -> None:
    (option,) = [o for o in SERVICES["worker-sandboxes"]["security_opt"] if o.startswith("seccomp=")]
    profile = json.loads((ROOT / option.removeprefix("seccomp=")).read_text())
    assert profile["defaultAction"] == "SCMP_ACT_ALLOW"
    refused = {name: entry for entry in profile["syscalls"] for name in entry["names"]}
    assert all(entry["action"] == "SCMP_ACT_ERRNO" for entry in refused.values())
    needed = {
        "chroot",
        "mount",
        "pivot_root",
        "sched_setaffinity",
        "setdomainname",
        "sethostname",
        "umount2",
        "unshare",
    }
    assert {name for name, entry in refused.items() if entry["errnoRet"] == errno.EPERM} == set(seccomp._CALLS) - needed
    assert {name for name, entry in refused.items() if entry["errnoRet"] == errno.ENOSYS} == set(seccomp._ABSENT) - {
        "clone3"
    }


@pytest.mark.parametrize("name", OWN)
def test_our_own_containers_are_locked_down(name: str) -> None:
    service = OWN[name]
    assert service["user"] == "10001:10001"
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["pids_limit"]


def test_ports_are_on_loopback_only() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)
    published = {name for name, service in SERVICES.items() if "ports" in service}
    assert published == {"api", "gateway", "temporal-ui"}
    assert COMPOSE["networks"]["backend"]["internal"] is True


def test_secrets_have_no_default() -> None:
    found = {name: rest for name, rest in _VARIABLE.findall(TEXT) if secret(name)}
    assert found.pop("JOURNEYMAN_MODEL_API_KEY") == ":-"  # a local engine needs none
    assert found
    assert all(rest.startswith(":?") for rest in found.values())
    holders = {
        name for name, service in SERVICES.items() if "JOURNEYMAN_MODEL_API_KEY" in service.get("environment", {})
    }
    assert holders == {"gateway"}


def test_dependencies_exist_and_are_waited_for() -> None:
    for name, service in SERVICES.items():
        for other, how in service.get("depends_on", {}).items():
            expected = "service_completed_successfully" if other in ONE_SHOT else "service_healthy"
            assert how["condition"] == expected, f"{name} -> {other}"


def test_files_that_are_mounted_exist() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("./"):
                assert (ROOT / source).is_file()
                assert volume.endswith(":ro")
            else:
                assert source in COMPOSE["volumes"]


def test_commands_and_settings_are_ones_we_have() -> None:
    known = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    for name, service in OWN.items():
        if "entrypoint" in service:
            continue
        assert service["command"][0] in known, name
        for variable in service["environment"]:
            assert variable.removeprefix("JOURNEYMAN_").lower() in Settings.model_fields, variable


def test_the_settings_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in OWN["api"]["environment"].items():
        monkeypatch.setenv(
            name, _VARIABLE.sub(lambda match: "" if match[1].startswith("JOURNEYMAN_MODEL") else "x" * 48, str(value))
        )
    settings = Settings()
    assert settings.environment == "production"
    assert settings.uses_replay_engine
    assert settings.worker_metrics_port == 9464


def test_the_env_file_has_what_is_needed_and_fresh_secrets(tmp_path: Path) -> None:
    paths = [tmp_path / "one.env", tmp_path / "two.env"]
    for path in paths:
        subprocess.run([sys.executable, ROOT / "infra/bin/make_env.py", path], check=True, capture_output=True)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    values = [
        dict(line.split("=", 1) for line in path.read_text().splitlines() if "=" in line and not line.startswith("#"))
        for path in paths
    ]
    needed = {name for name, rest in _VARIABLE.findall(TEXT) if rest.startswith(":?")}
    assert needed <= set(values[0])
    for name in needed:
        assert len(values[0][name]) >= 32
        assert values[0][name] != values[1][name]
    again = subprocess.run([sys.executable, ROOT / "infra/bin/make_env.py", paths[0]], check=False, capture_output=True)
    assert again.returncode != 0
    assert b"left as it is" in again.stderr


def test_the_object_store_configuration_is_json() -> None:
    content = _VARIABLE.sub("x", COMPOSE["configs"]["seaweedfs-s3"]["content"])
    assert json.loads(content)["identities"][0]["actions"][0] == "Admin"


def test_the_collector_scrapes_services_that_exist() -> None:
    collector = yaml.safe_load((ROOT / "infra/otel/collector.yaml").read_text())
    (job,) = collector["receivers"]["prometheus"]["config"]["scrape_configs"]
    for target in job["static_configs"][0]["targets"]:
        name, _, port = target.partition(":")
        assert name in OWN
        assert port in str(OWN[name])
    exporters = SERVICES["otel-collector"]["environment"]["OTEL_EXPORTERS"]
    for pipeline in collector["service"]["pipelines"].values():
        for kind in ("receivers", "processors"):
            assert set(pipeline[kind]) <= set(collector[kind])
        assert pipeline["exporters"] == "${env:OTEL_EXPORTERS}"
    # As Compose fills it in: without an endpoint, and with one.
    assert yaml.safe_load(_VARIABLE.sub("", exporters)) == ["debug"]
    chosen = yaml.safe_load(_VARIABLE.sub(lambda match: match[2].removeprefix(":+"), exporters))
    assert chosen == ["otlphttp/upstream", "debug"]
    assert set(chosen) <= set(collector["exporters"])


@pytest.mark.parametrize("file", ["docker-compose.yml", "infra/bin/make_env.py"])
def test_no_container_is_told_to_find_others_at_its_own_loopback_address(file: str) -> None:
    """The collector's default was its own receiver: everything it took in came back to it, for ever."""
    text = (ROOT / file).read_text()
    assert not re.findall(r"_(?:ENDPOINT|URL)\w*[=:][^\n]*(?:127\.0\.0\.1|localhost)", text)


def test_databases_are_ready_only_over_the_network_and_hold_every_character() -> None:
    """While a new database is set up, a server without network answers on the socket: too early for what waits."""
    for name in ("postgres", "temporal-postgres"):
        assert "-h 127.0.0.1" in SERVICES[name]["healthcheck"]["test"][1]
        assert "--encoding=UTF8" in SERVICES[name]["environment"]["POSTGRES_INITDB_ARGS"]


def test_temporal_has_the_settings_of_the_embedded_one() -> None:
    from journeyman.apps.embedded.services import _TEMPORAL_CONFIGURATION

    found = yaml.safe_load((ROOT / "infra/compose/temporal-dynamic-config.yaml").read_text())
    assert {name: str(entries[0]["value"]).lower() for name, entries in found.items()} == dict(_TEMPORAL_CONFIGURATION)
    # 1.31 was seen to ignore system.enableCancelActivityWorkerCommand as unknown.
    versions = {
        SERVICES[name]["image"].partition(":")[2] for name in ("temporal", "temporal-schema", "temporal-namespace")
    }
    assert len(versions) == 1
    assert [int(part) for part in versions.pop().split(".")[:2]] >= [1, 32]


@pytest.mark.parametrize("script", sorted(str(path.relative_to(ROOT)) for path in (ROOT / "infra").rglob("*.sh")))
def test_scripts_parse_and_can_be_run(script: str) -> None:
    subprocess.run(["sh", "-n", ROOT / script], check=True)
    assert os.access(ROOT / script, os.X_OK)


def test_the_image_copies_what_the_wheel_needs() -> None:
    dockerfile = (ROOT / "infra/images/Dockerfile").read_text()
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for line in dockerfile.splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            for source in line.split()[1:-1]:
                assert source.removeprefix("./") in allowed
                assert (ROOT / source).exists()
    assert "USER 10001:10001" in dockerfile
