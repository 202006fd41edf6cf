"""From a model to the bytes its decoder state takes, here and in other engines."""

from __future__ import annotations

from kvcache.planner.formats import CacheFormat, declare_model, format_names, parse_format
from kvcache.planner.report import Fit, GroupPlan, Growth, KindTerm, ModelPlan, plan_model

__all__ = [
    "CacheFormat",
    "Fit",
    "GroupPlan",
    "Growth",
    "KindTerm",
    "ModelPlan",
    "declare_model",
    "format_names",
    "parse_format",
    "plan_model",
]
