"""Multi-head latent attention (MLA): one latent and one rotary key a position, for all heads.

Source: DeepSeek-V2 (arXiv:2405.04434) section 2.1; sparse indexer: DeepSeek-V3.2 report.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcache.models.attention import hidden_size, layer_count
from kvcache.models.drafts import draft_count
from kvcache.models.registry import Decoder, register
from kvcache.policy import AttentionPolicy, LayerCachePolicy

if TYPE_CHECKING:
    from kvcache.models.fields import Fields

__all__ = ["latent_decoder", "latent_layer"]


def latent_layer(
    f: Fields, attention: AttentionPolicy | None = None, *, indexer_dim: int | None = None
) -> LayerCachePolicy:
    """The policy of one MLA layer; the latent is replicated on every tensor-parallel rank."""
    return LayerCachePolicy.compressed_latent_rotary(
        attention or AttentionPolicy.full(),
        f.count("kv_lora_rank"),
        f.count("qk_rope_head_dim"),
        indexer_dim=indexer_dim,
    )


@register("deepseek_v3")
def latent_decoder(f: Fields) -> Decoder:
    """Every layer is MLA over all positions."""
    layer = latent_layer(f)
    if f.tp > 1:
        f.note("kv_lora_rank", f"the latent is replicated on all {f.tp} tensor-parallel ranks")
    return Decoder(
        layers=[layer] * layer_count(f),
        hidden_size=hidden_size(f),
        drafts=[layer] * draft_count(f),
    )
