"""The gateway: an OpenAI-compatible API in front of all models, which authenticates, routes, pays and counts.

A process of its own, because every token of every agent passes through it.
"""
