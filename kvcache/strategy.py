"""How a model keeps state, as a summary; bytes come from the policies of its layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kvcache.serde import U64, Value, Variant

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvcache.policy import AttentionPolicy, LayerSchedule

__all__ = [
    "CacheStateStrategy",
    "CompressedMla",
    "FullKv",
    "HybridRecurrent",
    "MixedKv",
    "Multimodal",
    "SharedFullKv",
    "SlidingKey",
    "SlidingKv",
    "SlidingWindowLayerCount",
]


@dataclass(frozen=True, slots=True)
class SlidingWindowLayerCount(Value):
    """How many layers share a window."""

    window: U64
    layers: U64


class CacheStateStrategy(Variant):
    """What the layers of a model keep, in one label."""

    __slots__ = ()
    TAG_FIELD = "strategy"

    @staticmethod
    def for_attention(schedule: LayerSchedule[AttentionPolicy]) -> CacheStateStrategy:
        """The label of a plain text model: full, one window everywhere, or mixed."""
        windows = schedule.sliding_windows()
        full = schedule.full_layer_count
        if not windows:
            return FullKv()
        if not full and len(windows) == 1:
            return SlidingKv(next(iter(windows)))
        return MixedKv(full, window_counts(schedule))


def window_counts(
    schedule: LayerSchedule[AttentionPolicy],
) -> tuple[SlidingWindowLayerCount, ...]:
    """Layers of each window, by ascending window."""
    items: Iterable[tuple[int, int]] = schedule.sliding_windows().items()
    return tuple(SlidingWindowLayerCount(window, layers) for window, layers in items)


@dataclass(frozen=True, slots=True)
class FullKv(CacheStateStrategy):
    """Every attention layer keeps all positions."""

    TAG: ClassVar[str] = "full_kv"


@dataclass(frozen=True, slots=True)
class SlidingKv(CacheStateStrategy):
    """Every layer keeps the last ``window`` positions."""

    TAG: ClassVar[str] = "sliding_kv"
    window: U64


@dataclass(frozen=True, slots=True)
class SlidingKey(CacheStateStrategy):
    """Layers keep the keys of a window, some of them also a pooled history of all positions."""

    TAG: ClassVar[str] = "sliding_key"
    window: U64
    layers: U64
    pooling_layers: U64


@dataclass(frozen=True, slots=True)
class MixedKv(CacheStateStrategy):
    """Full and windowed layers, windows ascending."""

    TAG: ClassVar[str] = "mixed_kv"
    full_layers: U64
    sliding: tuple[SlidingWindowLayerCount, ...]


@dataclass(frozen=True, slots=True)
class SharedFullKv(CacheStateStrategy):
    """Some layers read the cache of another; the windows are masks and bound no allocation."""

    TAG: ClassVar[str] = "shared_full_kv"
    cached_layers: U64
    shared_layers: U64
    full_attention_layers: U64
    sliding_attention: tuple[SlidingWindowLayerCount, ...]


@dataclass(frozen=True, slots=True)
class CompressedMla(CacheStateStrategy):
    """A latent and a rotary key per position, whatever the heads."""

    TAG: ClassVar[str] = "compressed_mla"
    latent_width: U64
    rotary_width: U64


@dataclass(frozen=True, slots=True)
class HybridRecurrent(CacheStateStrategy):
    """Attention layers, and layers whose state does not grow; stateless layers count nowhere."""

    TAG: ClassVar[str] = "hybrid_recurrent"
    full_attention_layers: U64
    sliding_attention: tuple[SlidingWindowLayerCount, ...]
    recurrent_layers: U64


@dataclass(frozen=True, slots=True)
class Multimodal(CacheStateStrategy):
    """A decoder that also takes media."""

    TAG: ClassVar[str] = "multimodal"
    decoder: CacheStateStrategy
    media_consumes_decoder_positions: bool
