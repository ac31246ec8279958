"""What every slice shares: settings, ids, clock, errors, database, object store, Temporal client, telemetry."""
