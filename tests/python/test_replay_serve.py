"""The serving loop against a cache that is too simple to be wrong, or is wrong on purpose."""

from dataclasses import replace

import numpy as np
import pytest
from support.fake_cache import FakeCache, FakeSequence, make_plan

from kvcache.errors import InvalidArgumentError, OutOfCapacityError
from kvcache.replay import Replay, Request
from kvcache.replay.demo import generate_trace

FULL = [(0, "attention.keys", 1, 8, 0), (0, "attention.values", 1, 8, 0)]
SLIDING = [(2, "attention.keys", 2, 6, 33), (2, "attention.values", 2, 5, 33)]
LATENT = [(3, "attention.compressed_latent", 1, 32, 0), (3, "attention.rotary_keys", 1, 8, 0)]
KEY_ONLY = [(4, "attention.keys", 1, 4, 0)]
FIXED = [(1, "state.recurrent", (2, 8, 8)), (1, "state.convolution.0", (5, 3))]
TRACE = generate_trace(conversations=10)


def request(prompt, output=4, number=0):
    return Request(
        number=number,
        timestamp_ms=0,
        input_length=len(prompt),
        output_length=output,
        source=np.array(prompt, np.int32),
    )


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("fixed", [[], FIXED])
@pytest.mark.parametrize("paged", [FULL, SLIDING, LATENT, KEY_ONLY, FULL + SLIDING + LATENT])
def test_every_restored_byte_is_verified(paged, fixed, int8):
    plan = make_plan(paged, fixed, int8=int8)
    report = Replay(FakeCache(plan), plan, chunk_tokens=512).run(TRACE)
    assert report.passed
    assert report.requests == len(TRACE)
    assert report.rejected == 0
    assert report.verified_bytes == report.restored_bytes > 0
    assert 0.5 < report.token_hit_rate < 1
    assert 0.5 < report.block_hit_rate < 1
    assert {operation.name for operation in report.operations} >= {"open", "read", "write"}


def test_a_model_of_fixed_state_alone_is_served():
    plan = make_plan([], FIXED)
    report = Replay(FakeCache(plan), plan).run(TRACE)
    assert report.passed
    assert report.reused_tokens > 0


class Faulty(FakeCache):
    """Breaks what a hit restores, once."""

    def __init__(self, plan, damage):
        super().__init__(plan)
        self.damage = damage

    def open(self, tokens, **_request):
        seq = super().open(tokens)
        if seq.cached_tokens and self.damage is not None:
            self.damage(seq)
            self.damage = None
        return seq


def flip_a_key_bit(seq):
    seq.rows[0, "attention.keys"].view(np.uint16)[7, 0, 3] ^= 1


def shift_a_position(seq):
    rows = seq.rows[0, "attention.values"]
    rows[4] = rows[3]


def swap_components(seq):
    keys, values = (seq.rows[0, f"attention.{name}"] for name in ("keys", "values"))
    keys[-1], values[-1] = values[-1].copy(), keys[-1].copy()


def flip_a_state_bit(seq):
    seq.states[1, "state.recurrent"].view(np.uint32)[1, 7, 7] ^= 1


def shift_in_the_window(seq):
    seq.rows[2, "attention.keys"][-32] = 0


@pytest.mark.parametrize(
    ("damage", "count"),
    [
        (flip_a_key_bit, 1),
        (shift_a_position, 1),
        (swap_components, 2),
        (flip_a_state_bit, 1),
        (shift_in_the_window, 1),
    ],
)
def test_a_wrong_byte_is_a_mismatch(damage, count):
    plan = make_plan(FULL + SLIDING, FIXED)
    report = Replay(Faulty(plan, damage), plan).run(TRACE)
    assert report.mismatches == count
    assert report.verified_bytes < report.restored_bytes
    assert not report.passed


def test_int8_rows_off_by_more_than_half_a_step_are_a_mismatch():
    def shift(seq):
        rows = seq.rows[0, "attention.keys"]
        rows[0, 0, 0] += np.abs(rows[0, 0]).max() / np.float16(100)

    plan = make_plan(FULL, [], int8=True)
    assert Replay(Faulty(plan, shift), plan).run(TRACE).mismatches == 1


def test_int8_not_a_number_is_a_mismatch():
    class NotANumber(FakeSequence):
        def read(self, *args, **kwargs):
            keys, values = super().read(*args, **kwargs)
            keys[0, 0, 0] = np.nan
            return keys, values

    class Cache(FakeCache):
        def open(self, tokens, **_request):
            return NotANumber(self, tokens)

    plan = make_plan(FULL, [], int8=True)
    report = Replay(Cache(plan), plan).run([request([1, 2, 3])] * 2)
    assert report.mismatches == 1


def test_a_request_that_cannot_fit_is_rejected_and_the_run_goes_on():
    plan = make_plan(FULL, [], memory=8 << 20)
    long = request(range(300_000), number=1)
    report = Replay(FakeCache(plan), plan).run([request([1, 2]), long, request([1, 2, 3])])
    assert (report.requests, report.rejected, report.prompt_tokens) == (3, 1, 300_005)
    assert (report.rejected_tokens, report.rejected_positions) == (300_000, 300_004)
    assert report.passed


def test_a_request_that_runs_out_half_way_is_rejected():
    plan = make_plan(FULL, [])
    cache = FakeCache(plan, refuse_after=100)
    report = Replay(cache, plan, chunk_tokens=64).run([request(range(200)), request(range(50))])
    assert (report.rejected, report.prompt_tokens, report.reused_tokens) == (1, 250, 49)
    assert report.passed


def test_a_trace_of_which_nothing_fits_is_an_error_before_the_run():
    plan = make_plan(FULL, [], memory=8 << 20)
    cache = FakeCache(plan)
    with pytest.raises(OutOfCapacityError, match=r"no request fits: .*300004 positions.*--memory"):
        Replay(cache, plan).run([request(range(300_000)), request(range(400_000))])
    assert not cache.entries


def test_refused_snapshots_do_not_stop_a_run():
    plan = make_plan(FULL, FIXED)
    report = Replay(FakeCache(plan, refuse_snapshots=True), plan).run(TRACE[:5])
    assert report.snapshots == 0
    assert report.snapshots_refused >= 5
    assert report.reused_tokens == 0
    assert report.passed


def test_blocks_count_as_reused_only_when_all_of_them_was_there():
    plan = make_plan(FULL, [], block_tokens=16)
    trace = [request(range(40), 0), request(range(40), 0), request([*range(33), 99, 98], 0)]
    report = Replay(FakeCache(plan), plan).run(trace)
    # 40 positions are 3 blocks, 35 too; the second prompt finds all 3, the third 2 and a bit.
    assert (report.prompt_blocks, report.reused_blocks) == (9, 5)
    assert report.reused_tokens == 39 + 33


class Ledger(FakeCache):
    """Refuses whatever touches bytes."""

    def open(self, tokens, **_request):
        seq = super().open(tokens)
        seq.write = seq.read = seq.state = None
        return seq


def test_without_bytes_an_answer_that_nobody_recorded_stays_out_of_the_ledger():
    plan = make_plan(FULL, [], block_tokens=512)
    cache = Ledger(plan)
    trace = [replace(each, answer=None) for each in TRACE]
    report = Replay(cache, plan, real_bytes=False).run(trace)
    assert report.reused_tokens > 0
    assert report.output_tokens == report.restored_bytes == report.verified_bytes == 0
    assert {len(entry.tokens) for entry in cache.entries} <= {r.input_length for r in TRACE}


def test_without_bytes_a_recorded_answer_is_hit_by_the_next_turn():
    plan = make_plan(FULL, [], block_tokens=16)
    report = Replay(Ledger(plan), plan, real_bytes=False).run(TRACE)
    whole = Replay(FakeCache(plan), plan).run(TRACE)
    assert (report.reused_tokens, report.output_tokens) == (
        whole.reused_tokens,
        whole.output_tokens,
    )
    assert report.restored_bytes == 0


def test_more_blocks_than_the_capacity_are_rejected():
    plan = make_plan(FULL, [], block_tokens=16)
    replay = Replay(FakeCache(plan), plan, real_bytes=False, capacity_blocks=2)
    assert replay.run([request(range(33)), request(range(32))]).rejected == 1


def test_what_is_known_goes_by_the_place_of_a_request_not_by_its_number():
    plan = make_plan(FULL, [], block_tokens=16)
    replay = Replay(FakeCache(plan), plan, known=[0, 40])
    report = replay.run([request(range(40), number=7), request(range(40), number=9)])
    assert (report.lost.new, report.lost.last_token) == (40, 1)


@pytest.mark.parametrize("known", [[], [0], [0, 0, 0]])
def test_what_is_known_of_another_number_of_requests_is_refused(known):
    plan = make_plan(FULL, [], block_tokens=16)
    replay = Replay(FakeCache(plan), plan, known=known)
    with pytest.raises(InvalidArgumentError, match=f"2 requests, got {len(known)}"):
        replay.run([request(range(4)), request(range(5))])
    assert Replay(FakeCache(plan), plan).run([]).requests == 0


def test_json_has_the_published_keys_and_nothing_else():
    plan = make_plan(FULL, [])
    report = Replay(FakeCache(plan), plan).run(TRACE)
    assert " ".join(report.to_dict()) == (
        "requests rejected prompt_tokens reused_tokens token_hit_rate block_hit_rate "
        "restored_bytes verified_bytes mismatches peak_bytes budget_bytes evicted_blocks "
        "evicted_snapshots seconds model format policy rejected_tokens flop_hit_rate lost_tokens"
    )
