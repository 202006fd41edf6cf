"""Types of the compiled core; private, checked against the module by tests/python/test_stubs.py."""

import enum
from collections.abc import Sequence

__version__: str

class DType(enum.IntEnum):
    F32 = 0
    U32 = 1
    I32 = 2
    F16 = 3
    BF16 = 4
    U64 = 5
    U8 = 6
    FP8 = 7
    I8 = 8

class StateKind(enum.IntEnum):
    RECURRENT = 0
    PAGED_KV = 1
    PREFIX_SNAPSHOT = 2
    RING_SNAPSHOT = 3
    CARRY_STASH = 4
    CARRY_TABLE = 5
    VERIFY_TABLE = 6
    ACCEPT_STASH = 7
    HIDDEN_CAPTURE = 8
    PROMPT_LOOKUP_INDEX = 9
    TOKEN_TREE_MASK = 10
    DRAFT_TOKENS = 11

class Section(enum.IntEnum):
    MAIN = 0
    DRAFT = 1

class VerifyRule(enum.IntEnum):
    NONE = 0
    H_STEPS = 1
    CONV_STEPS = 2

class StateDecl:
    def __init__(
        self,
        *,
        id: str,
        layer: int,
        component: str,
        kind: StateKind,
        section: Section,
        dtype: DType,
        shape: Sequence[int],
        row_scale_bytes: int,
        window: int,
        verify: VerifyRule,
    ) -> None: ...
    @property
    def id(self) -> str: ...
    @property
    def layer(self) -> int: ...
    @property
    def component(self) -> str: ...
    @property
    def kind(self) -> StateKind: ...
    @property
    def section(self) -> Section: ...
    @property
    def dtype(self) -> DType: ...
    @property
    def shape(self) -> list[int]: ...
    @property
    def row_scale_bytes(self) -> int: ...
    @property
    def window(self) -> int: ...
    @property
    def verify(self) -> VerifyRule: ...

def unit_bytes(decl: StateDecl, /) -> int: ...

class PagedComponent:
    @property
    def decl(self) -> int: ...
    @property
    def layer(self) -> int: ...
    @property
    def dtype(self) -> DType: ...
    @property
    def heads(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def rows_offset(self) -> int: ...
    @property
    def scales_offset(self) -> int: ...

class Group:
    @property
    def window(self) -> int: ...
    @property
    def components(self) -> list[PagedComponent]: ...
    @property
    def token_bytes(self) -> int: ...
    @property
    def page_bytes(self) -> int: ...

class FixedComponent:
    @property
    def decl(self) -> int: ...
    @property
    def layer(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> DType: ...
    @property
    def shape(self) -> list[int]: ...
    @property
    def offset(self) -> int: ...
    @property
    def bytes(self) -> int: ...

class StatePlan:
    def __init__(
        self,
        decls: Sequence[StateDecl],
        *,
        memory_bytes: int,
        block_tokens: int,
        sequences: int,
    ) -> None: ...
    @property
    def decls(self) -> list[StateDecl]: ...
    @property
    def groups(self) -> list[Group]: ...
    @property
    def fixed(self) -> list[FixedComponent]: ...
    @property
    def slot_bytes(self) -> int: ...
    @property
    def block_bytes(self) -> int: ...
    @property
    def fingerprint(self) -> str: ...
    def sequence_bytes(self, tokens: int, chunk_tokens: int) -> int: ...
    def hit_bytes(self, tokens: int) -> int: ...

def active_isa() -> str: ...
def _error_class(code: int, /) -> str: ...
