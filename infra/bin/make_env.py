"""Write the ``.env`` that docker-compose.yml needs, with secrets made for this installation.

Usage: ``python3 infra/bin/make_env.py [FILE]``. An existing file is never touched. Standard library only.
"""

import os
import pathlib
import secrets
import sys

SECRETS = (
    "POSTGRES_PASSWORD",
    "TEMPORAL_POSTGRES_PASSWORD",
    "JOURNEYMAN_S3_ACCESS_KEY",
    "JOURNEYMAN_S3_SECRET_KEY",
    "QDRANT_API_KEY",
    "JOURNEYMAN_INTERNAL_SECRET",
)

SETTINGS = """
# The model that answers for the agents: any OpenAI-compatible API; on this machine at http://host.docker.internal:PORT/v1,
# for 127.0.0.1 is the container itself. Without one only the bundled demos can run, by scripted answers:
# docker compose --profile replay up
JOURNEYMAN_MODEL_BASE_URL=
JOURNEYMAN_MODEL_API_KEY=
JOURNEYMAN_MODEL_STANDARD=default
JOURNEYMAN_MODEL_FAST=default

# Where traces and metrics go on to (OTLP/HTTP), for example http://host.docker.internal:4319; empty: nowhere.
OTEL_UPSTREAM_ENDPOINT=

# Ports on this machine's loopback address. Put a TLS proxy in front of them.
JOURNEYMAN_API_PORT=8700
JOURNEYMAN_GATEWAY_PORT=8701
"""


def main(path: pathlib.Path) -> None:
    lines = ["# Secrets of this installation. Keep this file out of version control and backed up.", ""]
    # Hexadecimal: nothing in it means anything inside a URL or a shell.
    lines += [f"{name}={secrets.token_hex(24)}" for name in SECRETS]
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        sys.exit(f"{path} exists already and is left as it is.")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n" + SETTINGS)
    print(f"Wrote {path}. Next: docker compose up --build --detach")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".env"))
