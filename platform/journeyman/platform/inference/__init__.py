"""Model calls: the engine port and its client, the gateway, the ledger that pays for calls, and the replay engine."""
