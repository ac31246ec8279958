"""Limits of tasks and projects: what is spent of them, warnings, pausing at a limit, going on behind it."""
