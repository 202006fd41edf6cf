"""Decoder state of many sequences under one byte budget, with prefix reuse for hybrids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Never

from kvcache import _core
from kvcache._arguments import (
    Media,
    as_clock,
    as_count,
    as_layer,
    as_number,
    as_path,
    as_space,
    as_text,
    as_tokens,
)
from kvcache._erasure import as_erasure
from kvcache._events import published
from kvcache.errors import InvalidArgumentError, KVCacheError
from kvcache.explanation import Explanation, explained
from kvcache.hints import RequestHints, as_costs, unknown_option
from kvcache.lifetime import FOREVER, Pin, lease_ms, memory_share
from kvcache.lifetime import ttl_ms as as_ttl
from kvcache.memory import MemoryOptions, memory_core
from kvcache.metrics import prometheus_text
from kvcache.pages import PageMemory
from kvcache.plan import StatePlan
from kvcache.reservation import Reservation
from kvcache.sequence import Sequence
from kvcache.stats import CacheStats
from kvcache.tenants import TenantUsage, tenant_name, usage_by_name
from kvcache.tiers.disk import CacheDisk, DiskTier, disk_core
from kvcache.tiers.remote import CacheRemote, ValkeyTier, remote_core
from kvcache.units import parse_bytes

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping

    from numpy.typing import ArrayLike

    from kvcache.events import AllBlocksCleared, BlockRemoved, BlockStored
    from kvcache.hints import CostModel

__all__ = ["Cache", "policy_names"]

_DEFAULT_MEMORY = MemoryOptions()


def policy_names() -> tuple[str, ...]:
    """The eviction policies that `Cache` knows, the default first."""
    return tuple(_core.policy_names())


class Cache:
    """Pages, slots, snapshots and the prefix index of one model, within the plan's memory.

    Thread-safe. In a child of ``fork()`` every call of a handle of the parent, a sequence's too,
    raises InvalidArgumentError, but for ``close``, ``release``, ``is_open`` (False) and what never
    changes; make a new cache there.

    Args:
        plan: sizes and layout.
        policy: what is evicted first, one of `policy_names`.
        backing: False for a ledger that places, counts and evicts but stores no bytes.
        capacity_blocks: most blocks in a group; 0 for as many as the memory allows. Without
            backing it replaces the memory budget: stored prefixes may take the bytes of so many
            blocks, snapshots included, and open sequences come on top.
        max_memory: what `resize` can reach; by default the machine's memory. Takes addresses only.
        memory: how memory is taken from the system.
        costs: what recomputing costs, for policies that weigh it; the plan's by default.
        snapshot_interval: for models with fixed-size state, tokens between the positions that
            `Sequence.prefill_stops` proposes where nobody marked any; 0 for none.
        snapshots_per_path: most snapshots from a first token to the end of a prompt; those of least
            worth go first, and longer prompts get wider intervals. 0 for no limit.
        weights: names the model's weights; `load` refuses files of others. See `bump_epoch`.
        event_capacity: most blocks and snapshots in events that wait for `take_events`, each group
            counted; 0 records nothing. A recorded block costs 8 bytes as long as it is stored, and
            `publish` hashes every token of a sequence once.
        pin_limit: what all pins may hold: a float for a share of the budget, else bytes. See `pin`.
        ttl: seconds that what is stored is found, unless `open` says otherwise; None for no end.
        disk: a directory in which what is published is kept as well; see `kvcache.tiers.disk`.
        remote: a server by which caches share what they publish; see `kvcache.tiers.remote`. It is
            asked for what neither memory nor ``disk`` has.

    Raises:
        OutOfCapacityError: the memory holds not even one block of one sequence, or the system has
            less than is to be touched ahead.
        InvalidArgumentError: an unknown policy, ``max_memory`` below the plan's memory, or costs
            that are negative or not finite.
        UnsupportedError: the system cannot meet ``memory``; the message names the knob.
    """

    __slots__ = ("_core", "disk", "plan", "remote")

    def __init__(
        self,
        plan: StatePlan,
        *,
        policy: str = "price_list",
        backing: bool = True,
        capacity_blocks: int = 0,
        max_memory: str | int | None = None,
        memory: MemoryOptions = _DEFAULT_MEMORY,
        costs: CostModel | None = None,
        snapshot_interval: int = 1024,
        snapshots_per_path: int = 32,
        weights: str = "",
        event_capacity: int = 0,
        pin_limit: float | str = 0.5,
        ttl: float | None = None,
        disk: DiskTier | None = None,
        remote: ValkeyTier | None = None,
    ) -> None:
        if not isinstance(plan, StatePlan):
            raise InvalidArgumentError(f"plan: expected a StatePlan, got {type(plan).__name__}")
        costs = as_costs(costs, plan.costs)
        self.plan = plan
        self._core = _core.Cache(
            plan.core,
            policy=as_text(policy, "policy"),
            backing=bool(backing),
            capacity_blocks=as_count(capacity_blocks, "capacity_blocks"),
            max_memory_bytes=(
                0 if max_memory is None else parse_bytes(max_memory, name="max_memory")
            ),
            memory=memory_core(memory),
            flops_per_token=as_number(costs.flops_per_token, "costs.flops_per_token"),
            flops_per_token_per_position=as_number(
                costs.flops_per_token_per_position, "costs.flops_per_token_per_position"
            ),
            snapshot_interval=as_count(snapshot_interval, "snapshot_interval"),
            snapshots_per_path=as_count(snapshots_per_path, "snapshots_per_path", most=2**31 - 1),
            weights=as_text(weights, "weights"),
            event_capacity=as_count(event_capacity, "event_capacity"),
            pin_limit=memory_share(pin_limit, "pin_limit"),
            ttl_ms=FOREVER if ttl is None else as_ttl(ttl),
            disk=disk_core(disk),
            remote=remote_core(remote),
        )
        self.disk = None if disk is None else CacheDisk(self._core, disk)
        self.remote = None if remote is None else CacheRemote(self._core, remote)

    def open(
        self,
        tokens: ArrayLike,
        *,
        namespace: str | bytes = "",
        adapter: str | tuple[str, str] | None = None,
        salt: bytes | str = b"",
        media: Iterable[Media] = (),
        hints: RequestHints | None = None,
        now_ms: int | None = None,
        ttl: float | None = None,
        **_unknown: Never,
    ) -> Sequence:
        """Start a sequence at the longest prefix that needs no recomputation.

        Args:
            tokens: the prompt, any integers that fit int32, negative ones too, which engines use as
                placeholders; at least one.
            namespace: whose prefixes may be shared.
            adapter: name, or name and revision, of the adapter that computes the state.
            salt: further secret that must agree.
            media: ``(start, length, digest)`` of each image, clip or file: the positions of its pad
                tokens, which are alike for all of them, and what tells its content.
            hints: what is known of the request, for the eviction policy to learn from; its tenant
                is charged for what the sequence publishes.
            now_ms: milliseconds of the caller's clock, which never goes back, such as the times of
                a trace; None for a steady clock. A cache needs one or the other throughout.
            ttl: seconds that what the sequence publishes is found: from `Sequence.publish`, and
                anew from each `open` that uses it. The unit is a run, which ends where prompts
                part; one that a hit leaves half-way is renewed when its sequence publishes. Of
                several that publish a prefix the longest time counts. What has outlived its time is
                never found and goes before anything is evicted, or with `drop_expired`. None for
                the cache's ``ttl``, ``math.inf`` for until it is evicted.

        Raises:
            OutOfCapacityError: the plan's ``sequences`` are all open, or no slot is free.
            InvalidArgumentError: no tokens, an id that does not fit int32, a hint out of range,
                media that overlap or do not lie in the tokens, or a ttl that is not above 0.
        """
        if _unknown:
            raise unknown_option("open", _unknown)
        hints = RequestHints() if hints is None else hints
        if not isinstance(hints, RequestHints):
            raise InvalidArgumentError(f"hints: expected RequestHints, got {hints!r}")
        for tier in (self.disk, self.remote):
            if tier is not None:
                tier.warn()
        reuse = hints.expected_reuse
        core = self._core.open(
            as_tokens(tokens),
            *as_space(namespace, adapter, salt, media),
            tenant=as_text(hints.tenant, "hints.tenant"),
            kind=as_text(hints.kind, "hints.kind"),
            expected_reuse=None if reuse is None else as_number(reuse, "hints.expected_reuse"),
            now_ms=as_clock(now_ms),
            ttl_ms=None if ttl is None else as_ttl(ttl),
        )
        return Sequence(core, self.plan)

    def explain(
        self,
        tokens: ArrayLike,
        *,
        namespace: str | bytes = "",
        adapter: str | tuple[str, str] | None = None,
        salt: bytes | str = b"",
        media: Iterable[Media] = (),
    ) -> Explanation:
        """What `open` would reuse of ``tokens``, what limits it, and why more is not there.

        Changes nothing. Its time grows with the tokens beyond the hit, most of it outside the
        cache's lock. What has left is remembered as it goes, within 1/256 of the memory and 1 MiB;
        storing and finding cost nothing for it.

        Args:
            tokens: the prompt, as in `open`; there may be none.
            namespace: as in `open`.
            adapter: as in `open`.
            salt: as in `open`.
            media: as in `open`.

        Raises:
            InvalidArgumentError: an id that does not fit int32, or media that overlap or do not lie
                in the tokens.
        """
        found = self._core.explain(
            as_tokens(tokens),
            *as_space(namespace, adapter, salt, media),
        )
        return explained(found, self.plan)

    def pin(
        self,
        tokens: ArrayLike,
        *,
        namespace: str | bytes = "",
        adapter: str | tuple[str, str] | None = None,
        salt: bytes | str = b"",
        media: Iterable[Media] = (),
        lease: float | None = None,
        now_ms: int | None = None,
    ) -> Pin:
        """Keep the longest stored prefix of ``tokens`` from eviction, whole and resumable.

        Unlike in `open`, the last token counts too. ``Pin.tokens`` says how far it reaches.

        Args:
            tokens: the prompt, at least one token.
            namespace: as in `open`.
            adapter: as in `open`.
            salt: as in `open`.
            media: as in `open`.
            lease: seconds after which the pin lapses by itself; None for until it is released. It
                is looked at when memory is needed and when a call asks.
            now_ms: milliseconds of the caller's clock, as in `open`.

        Raises:
            NotFoundError: no prefix of the tokens is stored and usable.
            OutOfCapacityError: all pins together would hold more than ``pin_limit``.
            InvalidArgumentError: no tokens, or a lease that is not above 0.
        """
        core = _core.pin(
            self._core,
            as_tokens(tokens),
            *as_space(namespace, adapter, salt, media),
            lease_ms=lease_ms(lease),
            now_ms=as_clock(now_ms),
        )
        return Pin(core)

    def save(
        self,
        path: str | os.PathLike[str],
        tokens: ArrayLike,
        *,
        namespace: str | bytes = "",
        adapter: str | tuple[str, str] | None = None,
        salt: bytes | str = b"",
        media: Iterable[Media] = (),
        replace: bool = False,
        durable: bool = True,
    ) -> int:
        """Write the longest usable prefix of ``tokens`` to disk, with all that resuming it needs.

        Unlike `open`, the last token counts too. A model with fixed-size state is saved at its
        deepest snapshot; when that is at the last token, the one that `open` of the same tokens
        would use is saved beside it.

        Args:
            path: directory to create; its parent must exist. Readers see all of it or nothing.
            tokens: the prompt, at least one token.
            namespace: as in `open`; `load` must name the same.
            adapter: as in `open`; `load` must name the same.
            salt: as in `open`; `load` must name the same. Only a digest is stored.
            media: as in `open`; `load` must name the same.
            replace: let a prompt cache that is there already give way, in one step.
            durable: it is on the disk when this returns. Without, a process that is killed still
                leaves the old or the new one; after a power cut `load` may find neither whole, and
                refuses what it finds.

        Returns:
            Positions written, at most ``len(tokens)``.

        Raises:
            NotFoundError: no prefix of the tokens is resident and usable.
            UnsupportedError: its snapshot is not exact; files hold exact ones only.
            InvalidArgumentError: ``path`` exists, or is to be replaced and is no prompt cache.
            KVCacheIOError: the system refused; what was at ``path`` is as before.
        """
        return self._core.save(
            as_path(path),
            as_tokens(tokens),
            *as_space(namespace, adapter, salt, media),
            replace=bool(replace),
            durable=bool(durable),
        )

    def load(
        self,
        path: str | os.PathLike[str],
        *,
        namespace: str | bytes = "",
        adapter: str | tuple[str, str] | None = None,
        salt: bytes | str = b"",
        media: Iterable[Media] = (),
        ttl: float | None = None,
        tenant: str = "",
        convert: bool = False,
        read_threads: int = 2,
    ) -> int:
        """Make a saved prefix usable by `open`. Everything is checked before anything changes.

        The plan may differ from the saving one in memory, sequences and ``block_tokens``, and in
        the storage of attention rows where ``convert`` says so.

        Args:
            path: directory written by `save`.
            namespace: the one it was saved under.
            adapter: the one it was saved under.
            salt: the one it was saved under.
            media: those it was saved under.
            ttl: seconds that it is found, as in `open`.
            tenant: who is charged for it.
            convert: take rows that were saved in another storage format than this plan's, such as
                f16 for ``int8``, as `Sequence.write` would take them.
            read_threads: at most so many read, 1..64; a small prefix and ``convert`` take one.

        Returns:
            Positions made usable.

        Raises:
            CorruptionError: a file is damaged, missing or not what it claims; the message names it.
            UnsupportedError: another format version, model, namespace, adapter or salt; another
                storage format without ``convert``; or ``block_tokens`` so much larger that a window
                does not fill its first page.
            NonFiniteError: a row to become INT8 holds an infinity or NaN.
            OutOfCapacityError: no room, even after evicting, or in the tenant's quota; none of it
                was kept.
            KVCacheIOError: the system refused.
        """
        return self._core.load(
            as_path(path),
            *as_space(namespace, adapter, salt, media),
            None if ttl is None else as_ttl(ttl),
            as_text(tenant, "tenant"),
            bool(convert),
            as_count(read_threads, "read_threads", least=1, most=64),
        )

    def take_events(
        self, medium: str | None = "CPU"
    ) -> list[BlockStored | BlockRemoved | AllBlocksCleared]:
        """What has become, or stopped being, available for reuse since the last call, in order.

        Whole blocks and snapshots, each group apart. After more than ``event_capacity`` of them,
        the list begins with `AllBlocksCleared` and says everything there is: a router that follows
        it is right again. Every event is given once, so one caller publishes for all.

        Args:
            medium: what the events call the place of the blocks, by which routers choose what they
                heed. vLLM calls host memory ``CPU``, SGLang ``CPU_PINNED``, both the accelerator's
                ``GPU``.

        Raises:
            UnsupportedError: the cache was made without ``event_capacity``.
        """
        return self._published(_core.take_events, medium)

    def events_snapshot(
        self, medium: str | None = "CPU"
    ) -> list[BlockStored | BlockRemoved | AllBlocksCleared]:
        """`AllBlocksCleared` and everything there is, for a router that comes later.

        Publish it to all of them: it takes the place of the events that wait, and those taken
        afterwards follow it. Walks the whole index under its lock.

        Args:
            medium: as in `take_events`.

        Raises:
            UnsupportedError: the cache was made without ``event_capacity``.
        """
        return self._published(_core.events_snapshot, medium)

    def _published(
        self, give: Callable[[_core.Cache], list[_core.CacheEvent]], medium: str | None
    ) -> list[BlockStored | BlockRemoved | AllBlocksCleared]:
        """What ``give`` gives; events that do not arrive are said again by the next call."""
        medium = None if medium is None else as_text(medium, "medium")
        try:
            return published(give(self._core), self.plan, medium)
        except KVCacheError:  # nothing was taken
            raise
        except BaseException:
            _core.lose_events(self._core)
            raise

    def pages(self, layer: int, component: str) -> PageMemory:
        """One component of one layer in every page, without a copy.

        Args:
            layer: index of the decoder layer.
            component: its name, such as ``"attention.keys"``.

        Raises:
            InvalidArgumentError: the layer keeps no pages.
            NotFoundError: it has no such component; the message lists those it has.
            UnsupportedError: the cache is a ledger without bytes.
        """
        return PageMemory(
            *_core.page_memory(self._core, as_layer(layer), as_text(component, "component"))
        )

    def stats(self) -> CacheStats:
        """Counters at this moment."""
        core = self._core.stats()
        counted = {name: getattr(core, name) for name in CacheStats.__slots__}
        for name in ("group_pages", "window_pages_evicted"):
            counted[name] = tuple(counted[name])
        return CacheStats(**counted)

    def resize(self, memory: str | int) -> None:
        """Change the budget while sequences are open. ``stats().budget_bytes`` says what it is.

        Downwards, stored prefixes are evicted until the rest fits, and the memory goes back to the
        system. Upwards nothing happens but that more is allowed. Live state does not move: views
        stay valid.

        Args:
            memory: the new budget, as bytes or as text ("2GiB").

        Raises:
            OutOfCapacityError: open sequences and views, or pins, need more; nothing was changed.
                Where they do so only together, or with the stored prefixes that they share pages
                with, other prefixes may be gone.
            InvalidArgumentError: more than ``max_memory``.
        """
        self._core.resize(parse_bytes(memory))

    def reserve(self, memory: str | int) -> Reservation:
        """Take bytes out of the budget for memory that lies elsewhere, until they are released.

        Stored prefixes are evicted for them.

        Args:
            memory: as bytes or as text ("320MiB").

        Raises:
            OutOfCapacityError: open sequences, views or pins need them, or less than one position
                of one sequence would stay.
        """
        return Reservation(_core.reserve(self._core, parse_bytes(memory)))

    def prometheus(self, labels: Mapping[str, str] | None = None) -> str:
        """The counters in the text format that Prometheus scrapes.

        Args:
            labels: names and values that every sample carries, such as the model's name.

        Raises:
            InvalidArgumentError: a label that Prometheus would refuse.
        """
        return prometheus_text(self.stats(), labels, self.tenants(), self.disk, self.remote)

    def set_quota(self, tenant: str, quota: str | float | None) -> None:
        """Limit what is stored for a tenant; `kvcache.tenants` says how.

        Where more is stored already, its own prefixes are evicted until the rest fits. What is
        pinned, held by open sequences or continued by others stays: nothing is added to it, and it
        goes when the tenant's sequences close or it stores more.

        Args:
            tenant: as in `RequestHints`.
            quota: bytes, as an integer or as text; a float of 0.0..1.0 for that share of the
                memory, which follows `resize`; None for no limit.

        Raises:
            InvalidArgumentError: no name, or a quota that is negative, NaN or a share above 1.
        """
        share = None if quota is None else memory_share(quota, "quota")
        _core.set_quota(self._core, tenant_name(tenant), share)

    def tenants(self) -> dict[str, TenantUsage]:
        """What is stored for each tenant, of those that have something stored, or a quota."""
        return usage_by_name(_core.tenants(self._core))

    def clear(self) -> None:
        """Drop every stored prefix, pinned ones too. Open sequences keep what they hold.

        Tiers keep what they have, and `open` finds it there; ``erase()`` drops that too.
        """
        self._core.clear()

    def drop_expired(self) -> int:
        """Give back the memory of what has outlived its time to live, before it is needed.

        Returns:
            Blocks dropped.
        """
        return self._core.drop_expired()

    def bump_epoch(self, weights: str = "") -> None:
        """Drop every stored prefix at once, because the weights have changed.

        Takes constant time; memory comes back as it is needed. Open sequences go on with what they
        hold, but what they publish is dropped.

        Args:
            weights: name of the new ones. `save` stores it in the prompt cache's identity, and
                `load` refuses files of another.
        """
        self._core.bump_epoch(as_text(weights, "weights"))

    def erase(
        self,
        tokens: ArrayLike | None = None,
        *,
        namespace: str | bytes | None = None,
        adapter: str | tuple[str, str] | None = None,
        salt: bytes | str | None = None,
        media: Iterable[Media] = (),
        tenant: str | None = None,
    ) -> int:
        """Drop what agrees with everything given, pinned or not; open sequences keep theirs.

        A disk tier loses it from its files as well, of all weights and models, whatever the media;
        of a tenant all that it wrote. A remote tier loses it from the server, with ``tokens`` all
        of their space.

        Args:
            tokens: drop paths that begin with these, and what led only to them; within the one
                space that the other arguments name, where None means empty. None: whole spaces.
            namespace: None for any.
            adapter: a name for all its revisions, or name and revision; None for any, ``""`` for
                what no adapter computed.
            salt: None for any.
            media: of ``tokens``, as in `open`.
            tenant: drop only what it is charged for. Its prefixes that others continue, or resume
                inside, stay and are nobody's from then on; None for any.

        Returns:
            Blocks dropped from memory.

        Raises:
            UnsupportedError: the disk tier is another process's to erase; memory has been erased.
            KVCacheIOError: the same where the system or the server refused.
        """
        return self._core.erase(*as_erasure(tokens, namespace, adapter, salt, media, tenant))

    @property
    def policy(self) -> str:
        """Name of the eviction policy."""
        return self._core.policy

    def __repr__(self) -> str:
        return f"<Cache evicting by {self.policy!r}, {self.plan!r}>"
