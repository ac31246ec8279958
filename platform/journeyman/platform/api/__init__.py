"""The REST process: application, authentication, problem documents, limits, health."""
