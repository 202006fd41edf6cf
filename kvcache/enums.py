"""Names shared by declarations, plans and files; every value is the published spelling."""

from __future__ import annotations

from kvcache.serde import OrderedStrEnum

__all__ = [
    "CacheTier",
    "DType",
    "Gate",
    "Lifetime",
    "MutableStateResidency",
    "Section",
    "StateKind",
    "StateResidencyClass",
    "VerifyRule",
]


class DType(OrderedStrEnum):
    """Element types a state can be stored in."""

    F32 = "f32"
    U32 = "u32"
    I32 = "i32"
    F16 = "f16"
    BF16 = "bf16"
    U64 = "u64"
    U8 = "u8"
    FP8 = "fp8"
    I8 = "i8"

    @property
    def bytes(self) -> int:
        """Bytes of one element."""
        return {"u64": 8, "f32": 4, "u32": 4, "i32": 4, "f16": 2, "bf16": 2}.get(self.value, 1)


class Lifetime(OrderedStrEnum):
    """How long one unit of a state lives."""

    MODEL = "model"  # allocated once
    SEQUENCE = "sequence"  # claimed with a slot, released with it
    VERIFY = "verify"  # from the snapshot of a verify to its commit or rollback
    SNAPSHOT = "snapshot"  # owned by a prefix cache or a ring, in slots of its own


class StateKind(OrderedStrEnum):
    """The twelve kinds of decoder state, in sort order."""

    RECURRENT = "recurrent"
    PAGED_KV = "paged_kv"
    PREFIX_SNAPSHOT = "prefix_snapshot"
    RING_SNAPSHOT = "ring_snapshot"
    CARRY_STASH = "carry_stash"
    CARRY_TABLE = "carry_table"
    VERIFY_TABLE = "verify_table"
    ACCEPT_STASH = "accept_stash"
    HIDDEN_CAPTURE = "hidden_capture"
    PROMPT_LOOKUP_INDEX = "prompt_lookup_index"
    TOKEN_TREE_MASK = "token_tree_mask"
    DRAFT_TOKENS = "draft_tokens"

    @property
    def is_cache(self) -> bool:
        """Whether cache terms size it: every kind a model's layers do not update themselves."""
        return self not in (StateKind.RECURRENT, StateKind.PAGED_KV)

    @property
    def copies_a_state(self) -> bool:
        """Whether a unit is a copy of another state's unit."""
        return self in (StateKind.PREFIX_SNAPSHOT, StateKind.RING_SNAPSHOT)

    @property
    def is_host(self) -> bool:
        """Whether it lives in host memory even when the model does not."""
        return self is StateKind.PROMPT_LOOKUP_INDEX

    @property
    def lifetime(self) -> Lifetime:
        """The one lifetime this kind admits."""
        return _LIFETIMES[self]


_LIFETIMES = {
    StateKind.RECURRENT: Lifetime.SEQUENCE,
    StateKind.PAGED_KV: Lifetime.MODEL,
    StateKind.PREFIX_SNAPSHOT: Lifetime.SNAPSHOT,
    StateKind.RING_SNAPSHOT: Lifetime.SNAPSHOT,
    StateKind.CARRY_STASH: Lifetime.VERIFY,
    StateKind.CARRY_TABLE: Lifetime.MODEL,
    StateKind.VERIFY_TABLE: Lifetime.MODEL,
    StateKind.ACCEPT_STASH: Lifetime.VERIFY,
    StateKind.HIDDEN_CAPTURE: Lifetime.SEQUENCE,
    StateKind.PROMPT_LOOKUP_INDEX: Lifetime.SEQUENCE,
    StateKind.TOKEN_TREE_MASK: Lifetime.VERIFY,
    StateKind.DRAFT_TOKENS: Lifetime.VERIFY,
}


class Section(OrderedStrEnum):
    """Which part of the model a declaration belongs to."""

    MAIN = "main"
    DRAFT = "draft"


class VerifyRule(OrderedStrEnum):
    """How many intermediate states a speculative verify keeps of a recurrent state."""

    NONE = "none"
    H_STEPS = "h_steps"  # one count per verify slot
    CONV_STEPS = "conv_steps"  # one count for all verify slots


class Gate(OrderedStrEnum):
    """What one gate (decay) of a recurrent state ``[heads, i, j]`` is for."""

    HEAD = "head"  # gated delta nets, Mamba2, lightning attention
    CHANNEL = "channel"  # of a key, ``[heads, i]``: KDA, RWKV6
    ELEMENT = "element"  # Mamba, RG-LRU


class StateResidencyClass(OrderedStrEnum):
    """What may move a component out of the fastest memory, and when."""

    ALWAYS_DEVICE_MUTABLE = "always_device_mutable"  # small, written in place
    SEALABLE_PAGED = "sealable_paged"  # append-only, becomes immutable blocks
    LAYER_SCOPED_OFFLOADABLE = "layer_scoped_offloadable"  # needed while its layer runs


class MutableStateResidency(OrderedStrEnum):
    """The residency classes of state written in place."""

    ALWAYS_DEVICE_MUTABLE = "always_device_mutable"
    LAYER_SCOPED_OFFLOADABLE = "layer_scoped_offloadable"

    @property
    def residency_class(self) -> StateResidencyClass:
        """The same class among all three."""
        return StateResidencyClass(self.value)


class CacheTier(OrderedStrEnum):
    """Where a block's bytes are."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"
