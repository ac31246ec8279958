"""Control plane of Journeyman: API, gateway, stores, sandboxes and inference."""
