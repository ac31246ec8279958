"""Control plane of Journeyman: API, gateway, stores, sandboxes, inference, CLI and the embedded stack."""
