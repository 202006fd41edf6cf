"""What a model keeps between tokens, as read from its configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcache.capability import ModelCapabilities, StateMemoryLayout

if TYPE_CHECKING:
    from kvcache.hints import CostModel
    from kvcache.policy import LayerCachePolicy, LayerSchedule
    from kvcache.strategy import CacheStateStrategy

__all__ = ["Model"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The decoder state of one model on one tensor-parallel rank.

    Attributes:
        model_type: type of the decoder, that of the inner configuration of a multimodal model.
        schedule: one policy a layer; head counts are those of one rank.
        strategy: summary of the whole decoder, draft layers left out.
        notes: how the configuration was understood where it left room: each says the field.
        dtype: floating type the model was saved in, such as ``"bfloat16"``; None if not said.
        cache_dtype: type the configuration asks to keep keys and values in, such as
            ``"float8_e4m3"``; None when it asks for none.
        hidden_size: width of the hidden state.
        max_context: positions the model was made for, or None.
        draft_schedule: layers of the draft heads, or None; they keep state only while drafting.
        layer_start: index in the whole model of the first layer of ``schedule``.
        layer_count: layers of the whole model, of which ``schedule`` may be a range.
        tp: tensor-parallel ranks that the head counts were divided over.
        granularity: positions by which engines grow a cache of this family.
        draft_offset: how far the prefix of draft layers is from that of the model, 0 or less.
        capabilities: context, modalities and completeness, for admission.
        channel_parts: convolutions over several streams: the name of the tensor and for each
            stream ``(heads, channels of a head)`` of the whole model; no stream when they are
            not known. A stream of one head is on every rank, the others are divided.
        channel_gates: whether recurrent matrices have a gate (decay) for each key channel, as KDA
            and RWKV6, instead of one for each head.
    """

    model_type: str
    schedule: LayerSchedule[LayerCachePolicy]
    strategy: CacheStateStrategy
    notes: tuple[str, ...]
    dtype: str | None
    cache_dtype: str | None
    hidden_size: int
    max_context: int | None
    draft_schedule: LayerSchedule[LayerCachePolicy] | None
    layer_start: int
    layer_count: int
    tp: int
    granularity: int
    draft_offset: int
    capabilities: ModelCapabilities
    channel_parts: tuple[tuple[str, tuple[tuple[int, int], ...]], ...] = ()
    channel_gates: bool = False
    costs: CostModel | None = None

    def __repr__(self) -> str:
        rank = f", one of {self.tp} ranks" if self.tp > 1 else ""
        return f"<Model {self.model_type!r}, {len(self.schedule)} layers{rank}: {self.strategy!r}>"

    def memory_layout(self, *, drafts: bool = True) -> StateMemoryLayout:
        """What `estimate_runtime_state` reads: all layers, those of draft heads last.

        Args:
            drafts: whether draft layers are part of it.
        """
        draft = self.draft_schedule if drafts and self.draft_schedule is not None else ()
        return StateMemoryLayout.new(
            [*self.schedule, *draft],
            hidden_size=self.hidden_size,
            layer_prefix_offsets=[0] * len(self.schedule) + [self.draft_offset] * len(draft),
            allocation_granularity=self.granularity,
            completeness=self.capabilities.estimation,
        )
