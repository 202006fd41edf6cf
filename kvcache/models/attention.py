"""What attention layers have in common: head counts, head widths, windows, tensor parallelism."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcache.models.fields import HEADS, HIDDEN, LAYERS, MAX_LAYERS, shown
from kvcache.policy import AttentionPolicy, LayerCachePolicy

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcache.models.fields import Fields
    from kvcache.policy import StateTensorPolicy

    Pattern = Callable[[Fields, int], "list[AttentionPolicy]"]

__all__ = [
    "Heads",
    "attention_of",
    "every_layer",
    "full_only",
    "full_or_window",
    "head_width",
    "hidden_size",
    "key_value_heads",
    "layer_count",
    "layer_window",
    "layers_from",
    "per_layer_fields",
    "periodic",
    "rank_heads",
    "read_heads",
    "split",
    "upper_layers",
]

KEY_VALUE_HEADS = (
    "num_key_value_heads",
    "num_kv_heads",
    "n_head_kv",
    "kv_n_heads",
    "n_kv_heads",
    "multi_query_group_num",
    "num_query_groups",
    "num_attention_groups",
)
HEAD_WIDTH = ("head_dim", "attention_head_dim", "kv_channels", "d_kv", "dim_head", "d_head")
WINDOW = ("sliding_window", "sliding_window_size", "window_size", "attention_window_size")

_FULL = ("full_attention", "attention", "full", "global", "global_attention", "dense")
_SLIDING = ("sliding_attention", "sliding", "local", "local_attention", "window", "swa")


def layer_count(f: Fields) -> int:
    """Decoder layers."""
    return f.count(*LAYERS, most=MAX_LAYERS)


def hidden_size(f: Fields) -> int:
    """Width of the hidden state."""
    return f.count(*HIDDEN)


# -- heads -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Heads:
    """Key-value heads of one rank, and the elements of one head of a key and of a value."""

    count: int
    key_dim: int
    value_dim: int

    def layer(
        self,
        attention: AttentionPolicy,
        tensors: list[StateTensorPolicy] | None = None,
        *,
        indexer_dim: int | None = None,
    ) -> LayerCachePolicy:
        """The policy of a layer with these heads."""
        value_dim = None if self.value_dim == self.key_dim else self.value_dim
        if tensors:
            return LayerCachePolicy.key_value_with_fixed_state(
                attention,
                self.count,
                self.key_dim,
                tensors,
                value_head_dim=value_dim,
                indexer_dim=indexer_dim,
            )
        return LayerCachePolicy.key_value(
            attention, self.count, self.key_dim, value_head_dim=value_dim, indexer_dim=indexer_dim
        )


def key_value_heads(f: Fields, query_heads: int) -> int:
    """Key-value heads of the whole model; one a query head when nothing else is said."""
    name = next((name for name in KEY_VALUE_HEADS if f.has(name)), None)
    if name is not None:
        heads = f.count(name)
    else:
        name = next((name for name in KEY_VALUE_HEADS if f.is_null(name)), None)
        default = None if name else f.class_default(*KEY_VALUE_HEADS)
        why = "absent" if name is None else "null"
        name = name or "num_key_value_heads"
        if default is None:
            f.note(name, f"{why}, taken as num_attention_heads = {query_heads}")
            return query_heads
        heads = default
    if heads > query_heads or query_heads % heads:
        raise f.error(name, f"expected a divisor of {query_heads} attention heads, got {heads}")
    return heads


def head_width(f: Fields, query_heads: int, hidden: int) -> int:
    """Elements of one head: explicit, else by class default, else hidden size over heads."""
    for name in HEAD_WIDTH:
        if f.has(name):
            return f.count(name)
    if not any(f.is_null(name) for name in HEAD_WIDTH):
        default = f.class_default(*HEAD_WIDTH)
        if default is not None:
            return default
    if hidden % query_heads:
        raise f.error(
            "head_dim",
            f"absent, and hidden_size {hidden} is no multiple of {query_heads} attention heads; "
            "add head_dim",
        )
    width = hidden // query_heads
    f.note("head_dim", f"absent, taken as hidden_size / num_attention_heads = {width}")
    return width


def rank_heads(f: Fields, heads: int, name: str = "num_key_value_heads") -> int:
    """Key-value heads on each tensor-parallel rank; fewer heads than ranks are replicated."""
    tp = f.tp
    if heads % tp == 0:
        return heads // tp
    if tp % heads == 0:
        f.note(name, f"{heads} heads on {tp} ranks: each head is kept on {tp // heads} ranks")
        return 1
    raise f.error(name, f"{heads} key-value heads cannot be shared out over tp={tp} ranks")


def split(f: Fields, name: str, size: int) -> int:
    """A size that tensor parallelism divides evenly."""
    if size % f.tp:
        raise f.error(name, f"{size} cannot be divided over tp={f.tp} ranks")
    return size // f.tp


def read_heads(f: Fields, *, value_dim: str | None = None) -> Heads:
    """Heads of a layer; ``value_dim`` names the field with the width of a value, if any."""
    query_heads = f.count(*HEADS)
    key_dim = head_width(f, query_heads, hidden_size(f))
    count = rank_heads(f, key_value_heads(f, query_heads))
    return Heads(count, key_dim, (f.optional_count(value_dim) if value_dim else None) or key_dim)


# -- windows ---------------------------------------------------------------------------------


def layer_window(f: Fields, why: str) -> AttentionPolicy:
    """The window of a sliding layer, which must be there."""
    name = next((name for name in WINDOW if f.has(name)), None)
    if name is not None:
        return AttentionPolicy.sliding(f.count(name))
    window = None if any(f.is_null(name) for name in WINDOW) else f.class_default(*WINDOW)
    if window is None:
        raise f.error("sliding_window", f"{why}, so a positive integer is expected here")
    return AttentionPolicy.sliding(window)


def attention_of(f: Fields, name: str, index: int, kind: object) -> AttentionPolicy:
    """The attention that one entry of a per-layer list names."""
    if kind in _FULL:
        return AttentionPolicy.full()
    if kind in _SLIDING:
        if not f.flag("use_sliding_window", default=True):
            f.note(name, "sliding layers keep every position, since use_sliding_window is false")
            return AttentionPolicy.full()
        return layer_window(f, f"{name} has sliding layers")
    if kind == "chunked_attention":
        return chunk_window(f)
    raise f.error(f"{name}[{index}]", f"unknown layer type {shown(kind)}")


def chunk_window(f: Fields) -> AttentionPolicy:
    """Chunked attention keeps the positions of the chunk that runs."""
    if f.is_null("attention_chunk_size"):
        return AttentionPolicy.full()
    chunk = f.count("attention_chunk_size")
    f.note("attention_chunk_size", f"a chunked layer keeps at most its last {chunk} positions")
    return AttentionPolicy.in_chunks(chunk)


def full_only(f: Fields, layers: int) -> list[AttentionPolicy]:
    """Pattern of families that have no window."""
    for name in WINDOW:
        if f.has(name) and f.flag("use_sliding_window", default=True):
            f.note(name, "not used by this model_type; every layer keeps every position")
    return [AttentionPolicy.full()] * layers


def every_layer(f: Fields, layers: int) -> list[AttentionPolicy]:
    """Pattern of families in which a window, if there is one, holds for every layer."""
    return full_or_window(f, [False] * layers)


def upper_layers(*, flagged: bool) -> Pattern:
    """Pattern of Qwen2: layers from max_window_layers on slide; ``flagged``: only when asked to."""

    def pattern(f: Fields, layers: int) -> list[AttentionPolicy]:
        if flagged and not f.flag("use_sliding_window"):
            return [AttentionPolicy.full()] * layers
        window = f.optional_count(*WINDOW)
        if window is None:
            return [AttentionPolicy.full()] * layers
        first = f.number("max_window_layers")
        sliding = AttentionPolicy.sliding(window)
        return [sliding if i >= first else AttentionPolicy.full() for i in range(layers)]

    return pattern


def periodic(
    period: int,
    *names: str,
    first_full: bool = False,
    last_full: bool = False,
    from_end: bool = False,
) -> Pattern:
    """Pattern with one full layer in every ``period``, the rest sliding.

    Args:
        period: layers from one full layer to the next, unless a field says otherwise.
        names: fields that state the period: an integer, or one letter a layer (L or G).
        first_full: the full layer is the first of each period, not the last.
        last_full: the last layer of the model is full whatever its place.
        from_end: periods are counted back from the last layer, which is full.
    """

    def pattern(f: Fields, layers: int) -> list[AttentionPolicy]:
        letters, every = _stated_period(f, names, period)

        def is_full(i: int) -> bool:
            if last_full and i == layers - 1:
                return True
            if letters:
                return letters[i % len(letters)] == "G"
            place = layers - 1 - i if from_end else i if first_full else i + 1
            return place % every == 0

        return full_or_window(f, [is_full(i) for i in range(layers)])

    return pattern


def full_or_window(f: Fields, full: list[bool]) -> list[AttentionPolicy]:
    """Full attention where asked, else the window of the model, if it has and uses one."""
    sliding = AttentionPolicy.full()
    if not all(full) and f.flag("use_sliding_window", default=True):
        sliding = AttentionPolicy.from_sliding_window(f.optional_count(*WINDOW))
    return [AttentionPolicy.full() if each else sliding for each in full]


def _stated_period(f: Fields, names: tuple[str, ...], period: int) -> tuple[str, int]:
    for name in names:
        value = f.get(name)
        if isinstance(value, str):
            if not value or set(value) - set("LG"):
                raise f.wrong(name, "a positive integer or letters L and G")
            return value, period
        if value is not None:
            return "", f.count(name)
    return "", period


def per_layer_fields(f: Fields, layers: int) -> list[Fields]:
    """The fields of each layer: those of the model, with what ``per_layer_config`` changes."""
    result = [f] * layers
    for key, changes in f.objects("per_layer_config").items():
        if not (key.isascii() and key.isdigit() and len(key) < 9 and int(key) < layers):
            raise f.error("per_layer_config", f"expected indices below {layers}, got {shown(key)}")
        result[int(key)] = f.overlaid(changes)
    return result


def layers_from(f: Fields, layers: int, pattern: Pattern, drafts: int = 0) -> list[AttentionPolicy]:
    """Attention of each layer: the explicit list, else the pattern of the family.

    The list may go on with an entry for each of ``drafts`` draft layers, which are left out.
    A window of its own in ``per_layer_config`` comes before that of the model.
    """
    kinds = f.per_layer("layer_types", layers, spare=drafts)
    if kinds is None:
        result = pattern(f, layers)
    else:
        result = [attention_of(f, "layer_types", i, kinds[i]) for i in range(layers)]
    for i, own in enumerate(per_layer_fields(f, layers)):
        if own is not f and result[i].window is not None and own.has(*WINDOW):
            result[i] = layer_window(own, "the layer slides")
    return result
