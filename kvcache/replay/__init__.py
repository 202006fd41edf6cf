"""Serve a request trace against a model's decoder state, and check every byte that comes back."""

from __future__ import annotations

from kvcache.replay.report import Report
from kvcache.replay.serve import Replay
from kvcache.replay.timing import Operation
from kvcache.replay.trace import Request, read_trace

__all__ = ["Operation", "Replay", "Report", "Request", "read_trace"]
