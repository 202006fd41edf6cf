"""How attention state is stored, and the data type a user asks for."""

from __future__ import annotations

from typing import TypeAlias

from kvcache.enums import DType
from kvcache.errors import InvalidArgumentError, UnsupportedError
from kvcache.serde import JsonEnum, OrderedStrEnum, describe

__all__ = ["KvCacheDtype", "KvStorageFormat", "Storage", "parse_storage"]


class KvStorageFormat(JsonEnum):
    """Storage identity of paged state; says nothing about arithmetic or weights.

    ``str()`` is the form for people and messages (hyphens), ``.value`` the one on the wire.
    """

    F16 = "f16"
    INT8_PER_TOKEN_HEAD_F32_SCALE_V1 = "int8_per_token_head_f32_scale_v1"

    def __str__(self) -> str:
        return str(self.value).replace("_", "-")

    @property
    def element_bytes(self) -> int:
        """Bytes of one stored element."""
        return 2 if self is KvStorageFormat.F16 else 1

    @property
    def row_scale_bytes(self) -> int:
        """Bytes of scale beside each row of one token and head."""
        return 0 if self is KvStorageFormat.F16 else 4


class KvCacheDtype(OrderedStrEnum):
    """What a user may write as the data type of the KV cache."""

    FP16 = "fp16"
    INT8 = "int8"
    BF16 = "bf16"
    FP8 = "fp8"

    @classmethod
    def parse(cls, text: str) -> KvCacheDtype | None:
        """The dtype that ``text`` names in any of its usual spellings, or None."""
        return _SPELLINGS.get(text.strip().lower()) if isinstance(text, str) else None

    @classmethod
    def from_str(cls, text: str) -> KvCacheDtype:
        """As ``parse``, but an unknown name is an ``InvalidArgumentError``."""
        dtype = cls.parse(text)
        if dtype is None:
            known = ", ".join(_SPELLINGS)
            raise InvalidArgumentError(f"KV cache dtype {describe(text)}: expected one of {known}")
        return dtype

    def storage_format(self) -> KvStorageFormat:
        """The storage format that holds this dtype.

        Raises:
            UnsupportedError: BF16 and FP8 have no storage format here.
        """
        if self is KvCacheDtype.FP16:
            return KvStorageFormat.F16
        if self is KvCacheDtype.INT8:
            return KvStorageFormat.INT8_PER_TOKEN_HEAD_F32_SCALE_V1
        raise UnsupportedError(
            f"{self.name} KV storage is not supported; ask for fp16, or for int8 where the"
            " plan allows it"
        )


_SPELLINGS = {
    **dict.fromkeys(("fp16", "f16", "float16"), KvCacheDtype.FP16),
    **dict.fromkeys(("int8", "i8"), KvCacheDtype.INT8),
    **dict.fromkeys(("bf16", "bfloat16"), KvCacheDtype.BF16),
    **dict.fromkeys(("fp8", "f8", "f8e4m3", "e4m3"), KvCacheDtype.FP8),
}


Storage: TypeAlias = KvStorageFormat | DType
"""How the rows of a cache are stored: a published format, or `DType.BF16` or `DType.F32` as is."""

_PLAIN = {
    **dict.fromkeys(("bf16", "bfloat16"), DType.BF16),
    **dict.fromkeys(("f32", "fp32", "float32"), DType.F32),
}


def parse_storage(storage: Storage | str) -> Storage:
    """The storage that a name or a member means.

    The published formats are those an engine can name in a file of its own. Besides, a cache keeps
    rows of bfloat16 and float32 as they are, which have no such name.

    Args:
        storage: a format's wire or display form, or a usual spelling of f16, bf16, f32 or int8.

    Raises:
        InvalidArgumentError: an unknown name.
        UnsupportedError: fp8, whose scales lie outside the state.
    """
    if isinstance(storage, KvStorageFormat):
        return storage
    name = storage.strip().lower() if isinstance(storage, str) else storage
    if name in _PLAIN:
        return _PLAIN[name]
    for known in KvStorageFormat:
        if name in (known.value, str(known)):
            return known
    dtype = KvCacheDtype.parse(name)
    if dtype is None:
        raise InvalidArgumentError(
            f"format: expected 'f16', 'bf16', 'f32' or 'int8', got {describe(storage)}"
        )
    return dtype.storage_format()


def stored_as(storage: Storage) -> tuple[DType, int]:
    """Element of a stored row, and bytes of scale beside it."""
    if isinstance(storage, DType):
        return storage, 0
    dtype = DType.F16 if storage is KvStorageFormat.F16 else DType.I8
    return dtype, storage.row_scale_bytes
