#!/bin/sh
# Creates Temporal's two databases where they are missing and brings their schemas up to date. Safe to repeat.
set -eu
tool() { temporal-sql-tool --plugin postgres12 --ep temporal-postgres -p 5432 -u temporal "$@"; }
for database in temporal temporal_visibility; do
    case $database in
        temporal) schema=temporal ;;
        *) schema=visibility ;;
    esac
    tool --db "$database" create
    # Leaves a schema alone that is there already.
    tool --db "$database" setup-schema -v 0.0
    tool --db "$database" update-schema -d "/etc/temporal/schema/postgresql/v12/$schema/versioned"
done
