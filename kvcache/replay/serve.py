"""The serving loop: what an engine does with the cache for each request of a trace."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from kvcache.errors import InvalidArgumentError, OutOfCapacityError
from kvcache.hints import CostModel
from kvcache.replay.report import Report
from kvcache.replay.stand_in import StandInModel
from kvcache.replay.timing import Stopwatch
from kvcache.replay.workload import PrefixKeys
from kvcache.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from collections.abc import Sequence as Listing

    from numpy.typing import NDArray

    from kvcache.cache import Cache
    from kvcache.plan import StatePlan
    from kvcache.replay.trace import Request
    from kvcache.sequence import Sequence

__all__ = ["Replay"]

_UNTIMED_MS = 250  # between the requests of a trace without times


class Replay:
    """Serves requests one after another, in the order of the trace.

    Each request opens its longest usable prefix, has every restored byte checked, prefills the
    rest in chunks, takes a snapshot at each prefill stop, decodes, and publishes.

    Args:
        cache: where the state lives.
        plan: the plan that `cache` was made from.
        real_bytes: False moves no state: the cache keeps its ledger, which is all that hit rates
            and evictions depend on. Answers that the trace does not spell out are left out then,
            for no later prompt can hit them.
        chunk_tokens: most positions that one prefill step computes.
        capacity_blocks: blocks per group that `cache` may hold; 0 for no such limit. Without bytes
            it is the only limit.
        known: for each request that is served, in their order, positions of its prompt that
            earlier ones had; with them the report says what became of the rest.
    """

    def __init__(
        self,
        cache: Cache,
        plan: StatePlan,
        *,
        real_bytes: bool = True,
        chunk_tokens: int = 8192,
        capacity_blocks: int = 0,
        known: Listing[int] | None = None,
    ) -> None:
        self._cache = cache
        self._plan = plan
        self._stopwatch = Stopwatch()
        self._model = StandInModel(plan, self._stopwatch)
        self._real_bytes = real_bytes
        self._chunk_tokens = chunk_tokens
        self._capacity_blocks = capacity_blocks
        self._memory_limits = real_bytes or capacity_blocks == 0
        self._known = known
        self._costs = None if plan.costs == CostModel() else plan.costs
        self._report = Report()

    def check_fits(self, requests: Iterable[Request]) -> None:
        """Refuse a trace of which no request fits.

        Raises:
            OutOfCapacityError: the smallest request needs more than there is.
        """
        smallest = min(requests, key=self._positions, default=None)
        if smallest is None or self._fits(smallest):
            return
        positions = self._positions(smallest)
        blocks = -(-positions // self._plan.block_tokens)
        what = f"no request fits: the smallest has {positions} positions"
        if 0 < self._capacity_blocks < blocks:
            raise OutOfCapacityError(
                f"{what} in {blocks} blocks, the capacity is {self._capacity_blocks}; raise "
                "--capacity-blocks"
            )
        need = self._plan.sequence_bytes(positions, self._chunk_tokens)
        raise OutOfCapacityError(
            f"{what} and needs {format_bytes(need)} ({need} bytes), the memory is "
            f"{format_bytes(self._plan.memory_bytes)}; raise --memory"
        )

    def run(
        self, requests: Listing[Request], *, on_request: Callable[[Report], None] | None = None
    ) -> Report:
        """Serve `requests`; `on_request` sees the running report after each.

        Raises:
            InvalidArgumentError: `known` is of another number of requests; nothing was served.
            OutOfCapacityError: no request fits; nothing was served.
        """
        if self._known is not None and len(self._known) != len(requests):
            raise InvalidArgumentError(
                f"known: expected a number for each of {len(requests)} requests, got "
                f"{len(self._known)}"
            )
        self.check_fits(requests)
        report = self._report
        begin = time.perf_counter()
        # A trace without times still needs a clock that advances.
        timed = any(request.timestamp_ms != requests[0].timestamp_ms for request in requests)
        for place, request in enumerate(requests):
            report.requests += 1
            now_ms = int(request.timestamp_ms) if timed else request.number * _UNTIMED_MS
            self._ask(request)
            if not (self._fits(request) and self._serve(request, place, now_ms)):
                self._reject(request)
            if on_request is not None:
                on_request(report)
        report.seconds = time.perf_counter() - begin
        stats = self._cache.stats()
        report.peak_bytes, report.budget_bytes = stats.peak_bytes, stats.budget_bytes
        report.evicted_blocks = stats.evicted_blocks
        report.evicted_snapshots = stats.evicted_snapshots
        report.operations = self._stopwatch.operations()
        return report

    def _positions(self, request: Request) -> int:
        return request.input_length + (request.output_length if self._answers(request) else 0)

    def _answers(self, request: Request) -> bool:
        """Whether the output is served, too."""
        return self._real_bytes or request.answer is not None

    def _fits(self, request: Request) -> bool:
        positions = self._positions(request)
        if 0 < self._capacity_blocks < -(-positions // self._plan.block_tokens):
            return False
        if not self._memory_limits:
            return True
        try:
            need = self._plan.sequence_bytes(positions, self._chunk_tokens)
        except InvalidArgumentError:  # more than 64 bits count
            return False
        return need <= self._plan.memory_bytes

    def _serve(self, request: Request, place: int, now_ms: int) -> bool:
        """Serve one request; False when it ran out of memory half-way."""
        prompt = request.prompt()
        limit = ""
        try:
            with self._stopwatch("open"):
                seq = self._cache.open(prompt, now_ms=now_ms)
            with seq:
                cached, matched = seq.cached_tokens, seq.matched_tokens
                if self._known is not None and cached < matched:
                    limit = self._limit(prompt)
                self._run_model(seq, request, prompt)
                seq.close(output_tokens=request.output_length, now_ms=now_ms)
        except OutOfCapacityError:
            return False
        self._count(request, cached, matched)
        if self._known is not None:
            known = self._known[place]
            self._report.lost.count(request.input_length, known, matched, cached, limit)
        return True

    def _limit(self, prompt: NDArray[np.int32]) -> str:
        """What keeps a hit from all rows that are there; asks only where it can be either."""
        if not any(group.window for group in self._plan.groups):
            return "snapshot"
        return self._cache.explain(prompt).limited_by if self._plan.fixed else "window"

    def _run_model(self, seq: Sequence, request: Request, prompt: NDArray[np.int32]) -> None:
        prefix = PrefixKeys()
        keys = prefix.extend(prompt) if self._real_bytes else np.empty(0, np.uint64)
        if self._real_bytes and seq.cached_tokens:
            self._check(seq, keys[: seq.cached_tokens])
        for stop in self._stops(seq, request):
            self._compute(seq, keys, stop)
            self._snapshot(seq)
            self._publish(seq)
        self._compute(seq, keys, request.input_length)
        self._publish(seq)
        if self._answers(request) and request.output_length:
            output = request.output()
            seq.extend(output)
            if self._real_bytes:
                keys = np.concatenate([keys, prefix.extend(output)])
            self._compute(seq, keys, request.input_length + request.output_length)
            # An answer that the trace does not spell out never comes back in a later prompt.
            if self._plan.fixed and request.answer is not None:
                self._snapshot(seq)
            self._publish(seq)

    def _stops(self, seq: Sequence, request: Request) -> list[int]:
        """Positions at which a prefill chunk ends because a snapshot there pays."""
        if not self._plan.fixed:
            return []
        stops = {*request.stops, *seq.prefill_stops()}
        return sorted(stop for stop in stops if seq.length < stop <= request.input_length)

    def _compute(self, seq: Sequence, keys: NDArray[np.uint64], stop: int) -> None:
        """Advance to `stop` in chunks; between chunks what is sealed is published."""
        while (start := seq.length) < stop:
            chunk = min(stop - start, self._chunk_tokens)
            if self._real_bytes:
                written = self._model.write(seq, start, keys[start : start + chunk])
                self._report.written_bytes += written
            with self._stopwatch("advance"):
                seq.advance(chunk)
            if seq.length < stop:
                self._publish(seq)

    def _check(self, seq: Sequence, keys: NDArray[np.uint64]) -> None:
        report = self._report
        checked = self._model.check(seq, keys)
        restored = self._plan.hit_bytes(keys.size)
        report.restored_bytes += restored
        report.read_bytes += restored
        report.verified_bytes += checked.verified_bytes
        report.mismatches += checked.mismatches

    def _snapshot(self, seq: Sequence) -> None:
        try:
            with self._stopwatch("snapshot"):
                seq.snapshot()
            self._report.snapshots += 1
        except OutOfCapacityError:  # serving does not depend on it
            self._report.snapshots_refused += 1

    def _publish(self, seq: Sequence) -> None:
        with self._stopwatch("publish"):
            seq.publish()

    def _ask(self, request: Request) -> None:
        """Count what is asked for, whether it can be served or not."""
        report = self._report
        report.prompt_tokens += request.input_length
        report.prompt_blocks += -(-request.input_length // self._plan.block_tokens)
        if self._costs is not None:
            report.prompt_flops += self._costs.flops(0, request.input_length)

    def _reject(self, request: Request) -> None:
        report, positions = self._report, self._positions(request)
        report.rejected += 1
        report.rejected_tokens += request.input_length
        report.rejected_positions = min(report.rejected_positions or positions, positions)

    def _count(self, request: Request, cached: int, matched: int) -> None:
        report, block = self._report, self._plan.block_tokens
        report.reused_tokens += cached
        if self._costs is not None:
            report.reused_flops += self._costs.flops(0, cached)
        if self._answers(request):
            report.output_tokens += request.output_length
        # The last position is always recomputed, for its logits; its block was there all the same.
        whole = matched == request.input_length and cached == request.input_length - 1
        report.reused_blocks += -(-request.input_length // block) if whole else cached // block
