"""The replay engine: a real HTTP server with the API of a model, which plays scripted answers for the bundled tasks."""
