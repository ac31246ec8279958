"""Decisions that people take: plans and risky tool calls."""
