"""Engines whose state a cache keeps: one module or package each, with an extra of its name."""
