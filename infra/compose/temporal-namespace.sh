#!/bin/sh
# Creates the namespace where it is missing; closed workflows are kept for the given time.
set -eu
namespace=${TEMPORAL_NAMESPACE:?}
# The server's port is open before anything answers there: a minute and longer on a busy machine.
tries=0
until temporal operator cluster health >/dev/null 2>&1; do
    tries=$((tries + 1))
    if [ "$tries" -ge 60 ]; then
        echo "Temporal at ${TEMPORAL_ADDRESS:-localhost:7233} does not answer; see its own log." >&2
        exit 1
    fi
    sleep 2
done
temporal operator namespace describe -n "$namespace" >/dev/null 2>&1 ||
    temporal operator namespace create -n "$namespace" --retention "${TEMPORAL_RETENTION:-168h}"
