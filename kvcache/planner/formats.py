"""How engines store the rows of attention state: element types, block formats, MLA records.

A format only rewrites declarations (`StateDecl`): a block format of 32 elements in 34 bytes becomes
rows of 32 bytes with a scale of 2, so that the compiled core prices it by its one law.

Sources: block formats are those of ggml (``ggml-common.h``: ``block_q8_0`` and its kin); records
of latents those of FlashMLA (656 bytes: 512 fp8, four f32 scales, 64 bf16) and of its fp4 variant
(432 bytes: 256 of fp4, 32 of scales, 128 rotary, 16 of padding); the key of a sparse-attention
indexer is 128 fp8 and one f32 scale (132 bytes).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvcache.enums import DType, StateKind
from kvcache.errors import InvalidArgumentError, UnsupportedError
from kvcache.state import StateDecl, declare

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvcache.models import Model
    from kvcache.policy.layer import LayerCachePolicy
    from kvcache.policy.schedule import LayerSchedule

__all__ = ["CacheFormat", "RowFormat", "declare_model", "format_names", "parse_format"]


@dataclass(frozen=True, slots=True)
class RowFormat:
    """How one row of elements is stored.

    Attributes:
        name: as engines spell it.
        dtype: stored unit.
        block: elements that share a scale; 0 for a whole row of one head.
        units: stored units of one block; 0 for one a element.
        scale_bytes: bytes of scale and padding beside each block.
    """

    name: str
    dtype: DType
    block: int = 0
    units: int = 0
    scale_bytes: int = 0

    def encode(self, decl: StateDecl) -> StateDecl:
        """The same paged state, stored this way.

        Raises:
            UnsupportedError: a row that is not whole blocks.
        """
        heads, width = decl.shape
        if self.block == 0:
            return replace(decl, dtype=self.dtype, row_scale_bytes=self.scale_bytes)
        if heads * width % self.block:
            raise UnsupportedError(
                f"{decl.id}: {self.name} stores blocks of {self.block} elements, and a position "
                f"has {heads} x {width}"
            )
        shape = (heads * width // self.block, self.units or self.block)
        return replace(decl, dtype=self.dtype, shape=shape, row_scale_bytes=self.scale_bytes)


_F32 = RowFormat("f32", DType.F32)
_F16 = RowFormat("f16", DType.F16)
_BF16 = RowFormat("bf16", DType.BF16)
_FP8 = RowFormat("fp8", DType.FP8)
_FP8_INDEX = RowFormat("fp8 with a scale", DType.FP8, scale_bytes=4)
_NVFP4 = RowFormat("nvfp4", DType.U8, block=16, units=8, scale_bytes=1)

_ROWS: dict[str, RowFormat] = {
    "f32": _F32,
    "f16": _F16,
    "bf16": _BF16,
    "fp8": _FP8,
    "int8": RowFormat("int8", DType.I8, scale_bytes=4),
    "q8_0": RowFormat("q8_0", DType.I8, block=32, scale_bytes=2),
    "q6_0": RowFormat("q6_0", DType.U8, block=32, units=24, scale_bytes=2),
    "q5_1": RowFormat("q5_1", DType.U8, block=32, units=20, scale_bytes=4),
    "q5_0": RowFormat("q5_0", DType.U8, block=32, units=20, scale_bytes=2),
    "q4_1": RowFormat("q4_1", DType.U8, block=32, units=16, scale_bytes=4),
    "q4_0": RowFormat("q4_0", DType.U8, block=32, units=16, scale_bytes=2),
    "iq4_nl": RowFormat("iq4_nl", DType.U8, block=32, units=16, scale_bytes=2),
    "mxfp4": RowFormat("mxfp4", DType.U8, block=32, units=16, scale_bytes=1),
    "nvfp4": _NVFP4,
}
_SPELLINGS = {
    **{name: name for name in _ROWS},
    **dict.fromkeys(("fp32", "float32", "float"), "f32"),
    **dict.fromkeys(("fp16", "float16", "half"), "f16"),
    **dict.fromkeys(("bfloat16",), "bf16"),
    **dict.fromkeys(("f8", "e4m3", "fp8_e4m3", "fp8_e5m2", "float8_e4m3", "float8_e5m2"), "fp8"),
    **dict.fromkeys(("i8", "int8_per_token_head_f32_scale_v1"), "int8"),
    "int8-per-token-head-f32-scale-v1": "int8",
}


@dataclass(frozen=True, slots=True)
class CacheFormat:
    """How each part of the attention state is stored.

    Attributes:
        name: for people.
        keys: keys, and latents where ``latent`` is None.
        values: values.
        latent: the latent of MLA.
        rotary: the rotary key of MLA.
        indexer: the key of a sparse-attention indexer; None for the format of keys.
    """

    name: str
    keys: RowFormat
    values: RowFormat
    latent: RowFormat | None = None
    rotary: RowFormat | None = None
    indexer: RowFormat | None = None

    def encode(self, decl: StateDecl) -> StateDecl:
        """The declaration as stored; fixed-size state and integers are left alone."""
        if decl.kind is not StateKind.PAGED_KV or decl.dtype not in (DType.F16, DType.I8):
            return decl
        parts = {
            "attention.values": self.values,
            "attention.compressed_latent": self.latent,
            "attention.rotary_keys": self.rotary,
            "attention.indexer_keys": self.indexer,
        }
        return (parts.get(decl.component) or self.keys).encode(decl)

    def with_fp8_index(self) -> CacheFormat:
        """The same, with indexer keys in fp8 beside one scale, as the sparse kernels need them."""
        return replace(self, indexer=_FP8_INDEX)


_RECORDS = {
    "fp8_ds_mla": CacheFormat(
        "fp8_ds_mla",
        _FP8,
        _FP8,
        latent=RowFormat("fp8_ds_mla", DType.FP8, block=128, scale_bytes=4),
        rotary=_BF16,
        indexer=_FP8_INDEX,
    ),
    "nvfp4_ds_mla": CacheFormat(
        "nvfp4_ds_mla",
        _NVFP4,
        _NVFP4,
        latent=_NVFP4,
        rotary=RowFormat("nvfp4_ds_mla", DType.BF16, scale_bytes=16),
        indexer=_FP8_INDEX,
    ),
}


def format_names() -> tuple[str, ...]:
    """Formats that `parse_format` knows by their first spelling."""
    return (*_ROWS, *_RECORDS)


def parse_format(text: str, *, name: str = "--format") -> CacheFormat:
    """The format called ``text``: one name, or ``K/V`` for keys and values of two types.

    Raises:
        InvalidArgumentError: an unknown name; ``name`` is in the text.
    """
    if not isinstance(text, str):
        raise InvalidArgumentError(f"{name}: expected a format, got {text!r}")
    wanted = text.strip().lower()
    if wanted in _RECORDS:
        return _RECORDS[wanted]
    keys, slash, values = wanted.partition("/")
    rows = [_SPELLINGS.get(part.strip()) for part in ([keys, values] if slash else [keys, keys])]
    if rows[0] is None or rows[1] is None:
        known = ", ".join(format_names())
        raise InvalidArgumentError(f"{name}: unknown format {text!r}; expected one of {known}")
    label = rows[0] if rows[0] == rows[1] else f"{rows[0]}/{rows[1]}"
    return CacheFormat(label, _ROWS[rows[0]], _ROWS[rows[1]])


def declare_model(
    model: Model,
    stored: CacheFormat,
    *,
    state_dtype: DType | str = DType.F32,
    drafts: bool = False,
) -> tuple[StateDecl, ...]:
    """Declare what a model keeps, in a storage format.

    Args:
        model: the model.
        stored: format of everything that grows by the position.
        state_dtype: element of fixed-size tensors that are declared floating.
        drafts: whether layers of draft heads keep state too.
    """
    draft_layers = tuple(model.draft_schedule or ()) if drafts else ()
    schedule: LayerSchedule[LayerCachePolicy] = model.schedule
    if draft_layers:
        schedule = type(schedule)([*model.schedule, *draft_layers])
    declared = declare(
        schedule,
        state_dtype=state_dtype,
        draft_layers=len(draft_layers),
        channel_gates=model.channel_gates,
    )
    return encode(declared, stored)


def encode(decls: Iterable[StateDecl], stored: CacheFormat) -> tuple[StateDecl, ...]:
    """Every declaration as ``stored``."""
    return tuple(stored.encode(decl) for decl in decls)
