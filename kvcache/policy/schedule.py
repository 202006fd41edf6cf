"""The immutable list of one policy per decoder layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, TypeVar, overload

from kvcache.errors import LayerScheduleError
from kvcache.policy.attention import AttentionPolicy, Full, Sliding
from kvcache.policy.layer import LayerCachePolicy
from kvcache.serde import Value, Variant, decode_items, describe

__all__ = ["LayerSchedule"]

P = TypeVar("P", bound=Variant)


class LayerSchedule(Value, Sequence[P]):
    """One policy per decoder layer, in order; its JSON is a plain array.

    The policies are all ``AttentionPolicy``, or all ``LayerCachePolicy``.
    """

    __slots__ = ("_policies",)
    ERROR = LayerScheduleError
    ELEMENTS: ClassVar[tuple[type[Variant], ...]] = (AttentionPolicy, LayerCachePolicy)
    _policies: tuple[P, ...]

    def __init__(self, policies: Iterable[P]) -> None:
        object.__setattr__(self, "_policies", tuple(policies))
        self._check()

    @classmethod
    def new(cls, layer_count: int, policies: Iterable[P]) -> LayerSchedule[P]:
        """A schedule of exactly ``layer_count`` layers.

        Raises:
            LayerScheduleError: no layers, or another number of policies.
        """
        listed = tuple(policies)
        _check_count(layer_count)
        if len(listed) != layer_count:
            raise LayerScheduleError(f"expected {layer_count} layers, got {len(listed)}")
        return LayerSchedule(listed)

    @staticmethod
    def all_full(layer_count: int) -> LayerSchedule[AttentionPolicy]:
        """Full attention in every layer."""
        _check_count(layer_count)
        return LayerSchedule([AttentionPolicy.full()] * layer_count)

    @staticmethod
    def all_sliding(layer_count: int, window: int) -> LayerSchedule[AttentionPolicy]:
        """The same window in every layer."""
        _check_count(layer_count)
        return LayerSchedule([AttentionPolicy.sliding(window)] * layer_count)

    @staticmethod
    def from_sliding_pattern(
        layer_count: int, sliding: Iterable[bool], window: int | None
    ) -> LayerSchedule[AttentionPolicy]:
        """A window where ``sliding`` is true and full attention elsewhere.

        Raises:
            LayerScheduleError: no layers, a pattern of another length, a true without a window,
                or a window of 0 that some layer would use.
        """
        pattern = tuple(sliding)
        _check_count(layer_count)
        if len(pattern) != layer_count:
            raise LayerScheduleError(f"expected {layer_count} layers, got {len(pattern)}")
        if any(pattern) and window is None:
            raise LayerScheduleError("a layer slides but no window is given")
        full = AttentionPolicy.full()
        return LayerSchedule(
            [AttentionPolicy.from_sliding_window(window) if slides else full for slides in pattern]
        )

    @overload
    def __getitem__(self, index: int) -> P: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[P, ...]: ...
    def __getitem__(self, index: int | slice) -> P | tuple[P, ...]:
        return self._policies[index]

    def __len__(self) -> int:
        return len(self._policies)

    def __iter__(self) -> Iterator[P]:
        return iter(self._policies)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LayerSchedule) and self._policies == other._policies

    def __hash__(self) -> int:
        return hash(self._policies)

    def __repr__(self) -> str:
        return f"LayerSchedule({list(self._policies)!r})"

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"cannot set {name!r}: a LayerSchedule does not change")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"cannot delete {name!r}: a LayerSchedule does not change")

    def __reduce__(self) -> tuple[type[LayerSchedule[P]], tuple[tuple[P, ...]]]:
        return (LayerSchedule, (self._policies,))

    def get(self, index: int) -> P | None:
        """The policy of a layer, or None when there is no such layer."""
        return self._policies[index] if 0 <= index < len(self) else None

    @property
    def attentions(self) -> tuple[AttentionPolicy | None, ...]:
        """The attention of each layer; None where a layer has none."""
        return tuple(
            policy if isinstance(policy, AttentionPolicy) else getattr(policy, "attention", None)
            for policy in self._policies
        )

    @property
    def full_layer_count(self) -> int:
        """Layers with full attention."""
        return sum(isinstance(attention, Full) for attention in self.attentions)

    @property
    def sliding_layer_count(self) -> int:
        """Layers with a window."""
        return sum(isinstance(attention, Sliding) for attention in self.attentions)

    def sliding_windows(self) -> dict[int, int]:
        """Layers of each window, by ascending window."""
        windows = (attention.window for attention in self.attentions if attention is not None)
        return dict(sorted(Counter(w for w in windows if w is not None).items()))

    def fingerprint_component(self) -> str:
        """The attention of every layer as text, e.g. ``f,s8,f``; ``-`` where there is none.

        Chunked attention, which the published form does not have, is a ``c``.
        """
        return ",".join(
            "-"
            if attention is None
            else "f"
            if attention.window is None
            else f"{'c' if attention.chunked else 's'}{attention.window}"
            for attention in self.attentions
        )

    def _check(self) -> None:
        if not self._policies:
            raise LayerScheduleError("a schedule needs at least one layer")
        for family in self.ELEMENTS:
            if isinstance(self._policies[0], family):
                break
        else:
            self._fail("[0]", f"expected a policy, got {describe(self._policies[0])}")
        for index, policy in enumerate(self._policies):
            if not isinstance(policy, family):
                self._fail(f"[{index}]", f"expected {family.__name__}, got {describe(policy)}")

    def _key(self) -> tuple[Any, ...]:
        family = next(f for f in self.ELEMENTS if isinstance(self._policies[0], f))
        return (self.ELEMENTS.index(family), *(policy._key() for policy in self._policies))

    def _plain(self) -> list[Any]:
        return [policy.to_dict() for policy in self._policies]

    @classmethod
    def _from_plain(cls, data: Any) -> LayerSchedule[Any]:
        if not isinstance(data, list | tuple):
            raise ValueError(f"expected a list, got {describe(data)}")
        return LayerSchedule(decode_items(data, cls._element_of(data[0]) if data else cls))

    @classmethod
    def _element_of(cls, first: Any) -> type[Variant]:
        tag = (
            first
            if isinstance(first, str)
            else next(iter(first), None)
            if isinstance(first, dict)
            else None
        )
        for family in cls.ELEMENTS:
            if tag in family.VARIANTS:
                return family
        return cls.ELEMENTS[-1]


def _check_count(layer_count: int) -> None:
    if type(layer_count) is not int or layer_count < 0:
        raise LayerScheduleError(f"layer_count: expected a count, got {describe(layer_count)}")
    if layer_count == 0:
        raise LayerScheduleError("a schedule needs at least one layer")
