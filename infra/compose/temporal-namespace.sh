#!/bin/sh
# Creates the namespace where it is missing; closed workflows are kept for the given time.
set -eu
namespace=${TEMPORAL_NAMESPACE:?}
temporal operator namespace describe -n "$namespace" >/dev/null 2>&1 ||
    temporal operator namespace create -n "$namespace" --retention "${TEMPORAL_RETENTION:-168h}"
