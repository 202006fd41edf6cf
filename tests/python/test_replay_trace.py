import json

import numpy as np
import pytest
from support.corpus import traces_path

from kvcache.errors import InvalidArgumentError, KVCacheIOError, NotFoundError
from kvcache.replay import read_trace
from kvcache.replay.demo import generate_trace
from kvcache.replay.trace import HASH_BLOCK_TOKENS, block_tokens, decoded_tokens

GOOD = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}


def write(tmp_path, *lines):
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_hash_ids_become_tokens_and_the_last_block_is_partial(tmp_path):
    (request,) = read_trace(write(tmp_path, json.dumps(GOOD)))
    prompt = request.prompt()
    assert prompt.dtype == np.int32
    assert prompt.shape == (600,)
    whole = block_tokens(np.array([1, 2], np.uint64))
    np.testing.assert_array_equal(prompt, whole[:600])
    assert request.output().shape == (5,)
    assert request.stops == (512,)


def test_tokens_of_small_block_ids_are_disjoint():
    tokens = block_tokens(np.array([0, 1, 7, 182_790, 2**22 - 1], np.uint64))
    assert np.unique(tokens).size == 5 * HASH_BLOCK_TOKENS
    assert tokens.min() >= 0


def test_tokens_of_large_block_ids_differ_from_those_of_their_low_bits():
    ids = np.array([3, 3 + 2**22, 3 + 2**40, 2**63 - 1], np.uint64)
    blocks = block_tokens(ids).reshape(4, HASH_BLOCK_TOKENS)
    assert len({block.tobytes() for block in blocks}) == 4
    assert blocks.min() >= 0


def test_decoded_tokens_are_in_no_prompt_and_differ_by_request():
    first, second = decoded_tokens(0, 1000), decoded_tokens(1, 1000)
    assert first.max() < 0
    assert not np.intersect1d(first, second).size
    np.testing.assert_array_equal(first[:10], decoded_tokens(0, 10))
    assert decoded_tokens(5, 0).size == 0


def test_explicit_tokens_keep_their_answer_and_stops(tmp_path):
    line = {"token_ids": [5, 6, 7], "output_token_ids": [8, 9], "stops": [2, 2, 1], "user": "x"}
    (request,) = read_trace(write(tmp_path, json.dumps(line)))
    assert request.prompt().tolist() == [5, 6, 7]
    assert request.output().tolist() == [8, 9]
    assert request.output_length == 2
    assert request.stops == (1, 2)


def test_blank_lines_and_time_order_do_not_matter_and_limit_stops_reading(tmp_path):
    later = json.dumps(GOOD | {"timestamp": 9.5})
    path = write(tmp_path, later, "", json.dumps(GOOD), "broken")
    assert [request.timestamp_ms for request in read_trace(path, limit=2)] == [9.5, 0]
    with pytest.raises(InvalidArgumentError, match=r"trace\.jsonl:4: "):
        read_trace(path)


def test_a_last_line_without_a_newline_is_whole(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text(json.dumps(GOOD))
    assert len(read_trace(path)) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_length": -5}, "input_length: .*got -5"),
        ({"input_length": 0, "hash_ids": []}, "input_length: .*got 0"),
        ({"input_length": 600.0}, "input_length: .*float"),
        ({"input_length": "600"}, "input_length: .*str"),
        ({"input_length": None}, "input_length: .*null"),
        ({"input_length": 10**30}, "input_length: .*<= 16777216"),
        ({"output_length": -1}, "output_length: .*got -1"),
        ({"hash_ids": [1]}, "hash_ids: 600 positions are 2 blocks of 512, got 1"),
        ({"hash_ids": [1, -2]}, r"hash_ids\[1\]: .*got -2"),
        ({"hash_ids": [1, 2**64]}, r"hash_ids\[1\]: "),
        ({"hash_ids": [1, True]}, r"hash_ids\[1\]: .*bool"),
        ({"timestamp": "now"}, "timestamp: .*str"),
        ({"token_ids": [1]}, "needs either hash_ids or token_ids"),
        ({"output_token_ids": [1]}, "output_token_ids: "),
        ({"stops": [601]}, "stops: 601"),
    ],
)
def test_a_wrong_field_is_named_with_file_and_line(tmp_path, change, message):
    path = write(tmp_path, json.dumps(GOOD), json.dumps(GOOD | change))
    with pytest.raises(InvalidArgumentError, match=rf"trace\.jsonl:2: {message}"):
        read_trace(path)


@pytest.mark.parametrize("missing", ["input_length", "output_length"])
def test_a_missing_length_is_named(tmp_path, missing):
    line = {key: value for key, value in GOOD.items() if key != missing}
    with pytest.raises(InvalidArgumentError, match=rf":1: {missing}: missing"):
        read_trace(write(tmp_path, json.dumps(line)))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"token_ids": [], "output_length": 1}, "token_ids: needs 1"),
        ({"token_ids": [1]}, "output_length: missing"),
        ({"token_ids": [2**31], "output_length": 1}, r"token_ids\[0\]: "),
        ({"token_ids": [1, 2], "input_length": 3, "output_length": 1}, "input_length: is 3"),
        ({"token_ids": [1], "output_length": 2, "output_token_ids": [1]}, "output_length: is 2"),
    ],
)
def test_wrong_explicit_tokens_are_named(tmp_path, line, message):
    with pytest.raises(InvalidArgumentError, match=rf":1: {message}"):
        read_trace(write(tmp_path, json.dumps(line)))


@pytest.mark.parametrize(
    "line",
    ["[]", "null", "7", "not json", '{"a":' * 100_000, "[" * 100_000, '{"timestamp": 1e999}', "\0"],
)
def test_a_line_that_is_no_request_is_refused(tmp_path, line):
    with pytest.raises(InvalidArgumentError, match=r"trace\.jsonl:1: "):
        read_trace(write(tmp_path, line))


def test_a_cut_off_last_line_is_named(tmp_path):
    path = write(tmp_path, json.dumps(GOOD))
    path.write_text(path.read_text() + json.dumps(GOOD)[:40])
    with pytest.raises(InvalidArgumentError, match=r":2: .*cut off"):
        read_trace(path)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidArgumentError, match=r":1: not a JSON object"):
        read_trace(path)


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(NotFoundError, match="none"):
        read_trace(tmp_path / "none")
    with pytest.raises(KVCacheIOError, match="directory"):
        read_trace(tmp_path)
    with pytest.raises(InvalidArgumentError, match="no request"):
        read_trace(write(tmp_path, "", " "))


def test_the_public_conversation_trace_reads_whole():
    requests = read_trace(traces_path("conversation_trace.jsonl"))
    assert len(requests) == 12_031
    assert sum(request.input_length for request in requests) == 144_793_823


def test_generated_traces_repeat_and_branch():
    first, again, other = generate_trace(), generate_trace(), generate_trace(seed=1)
    assert [r.prompt().tobytes() for r in first] == [r.prompt().tobytes() for r in again]
    assert first[0].prompt().tobytes() != other[0].prompt().tobytes()
    prompts = [request.prompt().tobytes() for request in first]
    assert len(set(prompts)) < len(prompts)  # an answer was generated anew
    followed = sum(
        any(later.startswith(prompt + request.output().tobytes()) for later in prompts)
        for prompt, request in zip(prompts, first, strict=True)
    )
    assert 0 < followed < len(first)
    assert all(0 < stop <= r.input_length for r in first for stop in r.stops)
