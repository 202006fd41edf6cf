"""Attention, cache and state policies: the public names, gathered."""

from __future__ import annotations

from kvcache.enums import CacheTier, MutableStateResidency, StateResidencyClass
from kvcache.errors import CachePolicyError, LayerScheduleError
from kvcache.policy.attention import AttentionPolicy, Full, Sliding
from kvcache.policy.components import StateComponentPolicy, StateComponentRole
from kvcache.policy.layer import (
    CompressedLatentRotary,
    FixedState,
    KeyOnly,
    KeyOnlyWithFixedState,
    KeyValue,
    KeyValueWithFixedState,
    LayerCachePolicy,
    NoState,
)
from kvcache.policy.schedule import LayerSchedule
from kvcache.policy.tensors import (
    PoolingStateComponent,
    StateTensorDimension,
    StateTensorDtype,
    StateTensorOwner,
    StateTensorPolicy,
    StateTensorPresence,
    StateTensorRole,
)

__all__ = [
    "AttentionPolicy",
    "CachePolicyError",
    "CacheTier",
    "CompressedLatentRotary",
    "FixedState",
    "Full",
    "KeyOnly",
    "KeyOnlyWithFixedState",
    "KeyValue",
    "KeyValueWithFixedState",
    "LayerCachePolicy",
    "LayerSchedule",
    "LayerScheduleError",
    "MutableStateResidency",
    "NoState",
    "PoolingStateComponent",
    "Sliding",
    "StateComponentPolicy",
    "StateComponentRole",
    "StateResidencyClass",
    "StateTensorDimension",
    "StateTensorDtype",
    "StateTensorOwner",
    "StateTensorPolicy",
    "StateTensorPresence",
    "StateTensorRole",
]
