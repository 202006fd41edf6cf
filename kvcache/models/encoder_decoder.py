"""Decoders with cross-attention: keys and values of an encoder, written once a request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcache.models.attention import (
    Heads,
    head_width,
    hidden_size,
    key_value_heads,
    layer_count,
    layers_from,
    periodic,
    rank_heads,
    read_heads,
    split,
)
from kvcache.models.fields import HEADS, HIDDEN, LAYERS, MAX_LAYERS
from kvcache.models.registry import Decoder, register
from kvcache.models.state import media_keys_values
from kvcache.policy import AttentionPolicy, LayerCachePolicy

if TYPE_CHECKING:
    from kvcache.models.attention import Pattern
    from kvcache.models.fields import Fields
    from kvcache.policy import StateTensorPolicy

__all__: list[str] = []

_FULL = AttentionPolicy.full()
_DECODER_LAYERS = ("decoder_layers", "num_decoder_layers", "decoder_num_hidden_layers", *LAYERS)
_DECODER_HEADS = (
    "decoder_attention_heads",
    "num_decoder_attention_heads",
    "decoder_num_attention_heads",
    *HEADS,
)


def _encoder_positions(f: Fields, *names: str) -> int | None:
    """Encoder positions: as asked for, else the most that one of the fields allows."""
    if f.options.encoder_positions is not None:
        return f.options.encoder_positions
    name = next((name for name in names if f.has(name)), None)
    if name is None:
        f.note(
            "is_encoder_decoder",
            "keys and values of the encoder are not counted, since nothing bounds its length; "
            "pass encoder_positions",
        )
        return None
    positions = f.count(name)
    f.note(name, f"keys and values of the encoder are counted for {positions} positions, the most")
    return positions


def _cross(heads: Heads, positions: int | None) -> list[StateTensorPolicy]:
    """Keys and values of the encoder, if its length is known."""
    if positions is None:
        return []
    return [media_keys_values(positions, heads.count, heads.key_dim, optional=False)]


def _decoder(
    f: Fields,
    heads: Heads,
    layers: int,
    positions: int | None,
    cross: Heads | None = None,
    *,
    encoded: bool = True,
) -> Decoder:
    layer = heads.layer(_FULL, _cross(cross or heads, positions))
    return Decoder(layers=[layer] * layers, hidden_size=f.count(*HIDDEN), encoded=encoded)


_BARTS = """
bart bigbird_pegasus blenderbot blenderbot-small marian mbart mvp pegasus plbart prophetnet whisper
m2m_100 nllb-moe led pegasus_x fsmt speech_to_text seamless_m4t seamless_m4t_v2
"""


@register(*_BARTS.split())
def bart_decoder(f: Fields) -> Decoder:
    """BART and its kin: every head keeps keys and values, of the text and of the encoder."""
    query_heads = f.count(*_DECODER_HEADS)
    width = head_width(f, query_heads, f.count(*HIDDEN))
    heads = Heads(split(f, _DECODER_HEADS[0], query_heads), width, width)
    layers = f.count(*_DECODER_LAYERS, most=MAX_LAYERS)
    if not f.flag("is_encoder_decoder", default=True):
        return _decoder(f, heads, layers, None, encoded=False)
    names = ("max_source_positions", "max_encoder_position_embeddings", "max_position_embeddings")
    return _decoder(f, heads, layers, _encoder_positions(f, *names))


_CAPTIONERS = """
trocr musicgen_decoder musicgen_melody_decoder canary_decoder cohere_asr moonshine dia_decoder
pp_formulanet_text speecht5
"""


@register(*_CAPTIONERS.split())
def captioning_decoder(f: Fields) -> Decoder:
    """Decoders over images or sound, whose length this part of a configuration does not bound."""
    query_heads = f.count(*_DECODER_HEADS)
    width = head_width(f, query_heads, f.count(*HIDDEN))
    own = f.renamed(num_key_value_heads="decoder_num_key_value_heads")
    heads = Heads(rank_heads(f, key_value_heads(own, query_heads)), width, width)
    layers = f.count(*_DECODER_LAYERS, most=MAX_LAYERS)
    cross = heads
    if f.has("cross_num_key_value_heads"):
        count = rank_heads(f, f.count("cross_num_key_value_heads"), "cross_num_key_value_heads")
        size = f.optional_count("cross_head_dim") or width
        cross = Heads(count, size, size)
    return _decoder(f, heads, layers, _encoder_positions(f), cross)


@register(
    "t5",
    "mt5",
    "umt5",
    "longt5",
    "switch_transformers",
    "udop",
    "pop2piano",
    "pix2struct_text_model",
)
def t5_decoder(f: Fields) -> Decoder:
    """T5 and its kin: heads as wide as ``d_kv``."""
    query_heads = f.count(*HEADS)
    width = f.count("d_kv")
    heads = Heads(split(f, HEADS[0], query_heads), width, width)
    layers = f.count("num_decoder_layers", *LAYERS, most=MAX_LAYERS)
    if not f.flag("is_encoder_decoder", default=True):
        return _decoder(f, heads, layers, None, encoded=False)
    return _decoder(f, heads, layers, _encoder_positions(f, "n_positions"))


def _gemma_decoder(f: Fields, pattern: Pattern) -> Decoder:
    """A Gemma decoder over the output of an encoder, both nested."""
    inner, encoder = f.section("decoder"), f.section("encoder")
    if inner is None:
        raise f.error("decoder", "expected an object")
    layers, heads = layer_count(inner), read_heads(inner)
    if encoder is not None:
        encoder = encoder.section("text_config") or encoder
    cross = _cross(heads, _encoder_positions(encoder or f, "max_position_embeddings"))
    return Decoder(
        layers=[heads.layer(each, cross) for each in layers_from(inner, layers, pattern)],
        hidden_size=hidden_size(inner),
        encoded=True,
    )


@register("t5gemma", whole=True)
def t5gemma_decoder(f: Fields) -> Decoder:
    """Sliding and full attention in turn."""
    return _gemma_decoder(f, periodic(2))


@register("t5gemma2", whole=True)
def t5gemma2_decoder(f: Fields) -> Decoder:
    """One full layer in six."""
    return _gemma_decoder(f, periodic(6))


@register("mllama_text_model")
def mllama_decoder(f: Fields) -> Decoder:
    """Self-attention over text, and cross-attention layers that keep the image only."""
    layers = layer_count(f)
    query_heads = f.count(*HEADS)
    width = head_width(f, query_heads, hidden_size(f))
    heads = Heads(rank_heads(f, key_value_heads(f, query_heads)), width, width)
    cross = f.integers("cross_attention_layers")
    if cross is None:
        cross = [i for i in (3, 8, 13, 18, 23, 28, 33, 38) if i < layers]
        f.note("cross_attention_layers", f"absent, taken as {cross}, the default of this type")
    for i, index in enumerate(cross):
        if index >= layers:
            raise f.error(f"cross_attention_layers[{i}]", f"expected a layer below {layers}")
    positions = _image_positions(f) if cross else None
    image = (
        LayerCachePolicy.no_state()
        if positions is None
        else LayerCachePolicy.fixed_only(
            [media_keys_values(positions, heads.count, width, optional=True)]
        )
    )
    text = heads.layer(_FULL)
    return Decoder(
        layers=[image if i in set(cross) else text for i in range(layers)],
        hidden_size=hidden_size(f),
        media_positions=False,
    )


def _image_positions(f: Fields) -> int | None:
    """Positions of one image: patches and one class token of every tile."""
    if f.options.encoder_positions is not None:
        return f.options.encoder_positions
    vision = f.parent.section("vision_config") if f.parent is not None else None
    if vision is None or not vision.has("image_size", "patch_size"):
        f.note(
            "cross_attention_layers",
            "keys and values of images are not counted, since vision_config gives no size; "
            "pass encoder_positions",
        )
        return None
    side = max(1, vision.count("image_size") // vision.count("patch_size"))
    tiles = vision.number("max_num_tiles", 4) or 1
    positions = tiles * (side * side + 1)
    vision.note(
        "max_num_tiles", f"one image of {tiles} tiles: {positions} positions, text has none"
    )
    return positions
