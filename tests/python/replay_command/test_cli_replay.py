"""`kvcache replay` as a person or a script meets it: exit codes, one line of error, the output."""

import json
import os
import subprocess
import sys

import pytest
from support.corpus import corpus_path, traces_path

import kvcache
from kvcache.cli import main
from kvcache.replay.demo import DEMO_MODEL

KEYS = (
    "requests rejected prompt_tokens reused_tokens token_hit_rate block_hit_rate restored_bytes "
    "verified_bytes mismatches peak_bytes budget_bytes evicted_blocks evicted_snapshots seconds "
    "model format policy rejected_tokens flop_hit_rate lost_tokens"
)
LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 16,
}
# Two full attention layers with one head of 8, six gated delta nets with two heads of 8 x 8.
SMALL_HYBRID = DEMO_MODEL | {
    "num_key_value_heads": 1,
    "head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_num_value_heads": 2,
    "linear_value_head_dim": 8,
}
LINE = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}


def replayed(run, *args):
    code, out, err = run(*args, "--json")
    assert err == ""
    report = json.loads(out)
    assert " ".join(report) == KEYS
    assert report["verified_bytes"] == report["restored_bytes"]
    assert report["mismatches"] == 0
    assert report["peak_bytes"] <= report["budget_bytes"]
    counted = report["reused_tokens"] + report["rejected_tokens"]
    assert counted + sum(report["lost_tokens"].values()) == report["prompt_tokens"]
    assert code == 0
    return report


def test_without_arguments_a_hybrid_is_served_with_hits_evictions_and_snapshots(run):
    report = replayed(run)
    assert report["rejected"] == 0
    assert report["token_hit_rate"] > 0.5
    assert report["restored_bytes"] > 0
    assert report["evicted_blocks"] > 0
    assert report["evicted_snapshots"] > 0
    assert (report["model"], report["format"], report["policy"]) == (
        "qwen3_next",
        "f16",
        "price_list",
    )


def test_the_table_says_mismatches_0(run):
    code, out, _ = run("--requests", 20)
    assert code == 0
    lines = [line.split() for line in out.splitlines()]
    assert ["mismatches", "0"] in lines
    assert ["operation", "calls", "p50", "p99", "total"] in lines


@pytest.mark.parametrize(
    ("storage", "row_bytes"), [("f16", 32), ("int8", 16 + 4), ("bf16", 32), ("fp32", 64)]
)
def test_a_trace_of_block_ids_is_served_on_a_config_file(run, write, storage, row_bytes):
    trace = write("trace.jsonl", *[LINE] * 3, LINE | {"hash_ids": [1, 3]})
    report = replayed(
        run, "--model", write("config.json", LLAMA), "--trace", trace, "--format", storage
    )
    assert report["requests"] == 4
    assert report["reused_tokens"] == 599 + 599 + 512
    assert report["format"] == storage
    stored = 2 * 2 * row_bytes  # bytes of one position
    assert report["restored_bytes"] == report["reused_tokens"] * stored


@pytest.mark.parametrize("block_tokens", [1, 7, 64])
def test_block_sizes_that_divide_nothing_work(run, block_tokens):
    report = replayed(run, "--requests", 40, "--block-tokens", block_tokens)
    assert report["token_hit_rate"] > 0.5


def test_snapshots_are_as_far_apart_as_asked_for(run):
    def taken(interval):
        _, out, _ = run("--requests", 40, "--bytes", "none", "--snapshot-interval", interval)
        line = next(line for line in out.splitlines() if line.startswith("snapshots taken"))
        return int(line.split()[2].replace(",", ""))

    assert taken(0) < taken(1024) < taken(128)


def test_requests_that_do_not_fit_are_counted_and_the_rest_is_served(run, write):
    long = LINE | {"input_length": 512 * 400, "hash_ids": list(range(400))}
    trace = write("trace.jsonl", LINE, long, LINE)
    model = write("config.json", LLAMA)
    report = replayed(run, "--model", model, "--trace", trace, "--memory", "8MiB")
    assert (report["requests"], report["rejected"]) == (3, 1)
    assert (report["prompt_tokens"], report["rejected_tokens"]) == (1200 + 512 * 400, 512 * 400)


def test_without_bytes_capacity_alone_limits(run, write):
    turns = [LINE | {"input_length": 512 * n, "hash_ids": list(range(n))} for n in (8, 8, 10, 8)]
    model, trace = write("config.json", LLAMA), write("trace.jsonl", *turns)
    options = ["--model", model, "--trace", trace, "--bytes", "none", "--block-tokens", 512]
    report = replayed(run, *options, "--capacity-blocks", 9)
    # All 8 blocks come back twice, and the request of 10 never fits.
    assert (report["rejected"], report["block_hit_rate"]) == (1, round(16 / 34, 6))
    assert report["restored_bytes"] == 0
    assert replayed(run, *options, "--capacity-blocks", 10)["block_hit_rate"] == round(24 / 34, 6)


def test_a_command_without_a_subcommand_prints_help(capsys):
    assert main([]) == 0
    assert "replay" in capsys.readouterr().out


def test_the_module_is_the_command():
    done = subprocess.run(
        [sys.executable, "-P", "-m", "kvcache", "replay", "--requests", "3", "--json"],
        capture_output=True,
        text=True,
        env=os.environ | {"TERM": "dumb"},
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["requests"] == 3


def test_a_mismatch_fails_the_command(run, monkeypatch):
    real_read = kvcache.Sequence.read

    def flip(self, *args, **kwargs):
        keys, values = real_read(self, *args, **kwargs)
        keys.view("uint16")[0, 0, 0] ^= 1
        return keys, values

    monkeypatch.setattr(kvcache.Sequence, "read", flip)
    code, out, _ = run("--requests", 20)
    assert code == 1
    assert "FAILED" in out


# ---- Wrong inputs -------------------------------------------------------------------------------


def test_a_missing_model_file_is_named(refused):
    assert "none.json" in refused("--model", "none.json")


def test_a_link_to_itself_is_named(refused, tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    for option in ("--model", "--trace"):
        assert "Too many levels of symbolic links" in refused(option, tmp_path / "loop")


def test_a_missing_trace_file_is_named(refused):
    assert "none.jsonl" in refused("--trace", "none.jsonl")


def test_a_folder_in_the_place_of_a_file_is_named(refused, tmp_path):
    assert str(tmp_path) in refused("--model", tmp_path)
    assert str(tmp_path) in refused("--trace", tmp_path)


@pytest.mark.parametrize("text", ["", "{", "not json", "[]", "\x00", "7", '{"a": 1e999}'])
def test_a_model_file_that_is_no_config_is_named(refused, tmp_path, text):
    path = tmp_path / "config.json"
    path.write_text(text)
    assert str(path) in refused("--model", path)


def test_a_model_file_that_is_no_text_is_named(refused, tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(b"\xff\xfe\x00")
    assert str(path) in refused("--model", path)


def test_an_unknown_model_type_is_named_with_its_file(refused, write):
    path = write("config.json", LLAMA | {"model_type": "nonesuch"})
    err = refused("--model", path)
    assert str(path) in err
    assert "nonesuch" in err


def test_a_broken_field_of_a_config_is_named_with_its_file(refused, write):
    path = write("config.json", LLAMA | {"num_hidden_layers": -2})
    err = refused("--model", path)
    assert str(path) in err
    assert "num_hidden_layers" in err


@pytest.mark.parametrize("memory", ["0", "0GiB", "-1GiB", "much", "", "9" * 5000, "16777216TiB"])
def test_a_wrong_memory_names_the_option(refused, memory):
    assert "--memory" in refused(f"--memory={memory}")


@pytest.mark.parametrize("memory", ["1", "64KiB", "256KiB"])
def test_memory_in_which_no_request_fits_is_an_error_before_the_run(refused, memory):
    assert "memory" in refused("--memory", memory)


def test_a_capacity_in_which_no_request_fits_is_an_error_before_the_run(refused, write):
    model = write("config.json", LLAMA)
    err = refused("--model", model, "--bytes", "none", "--capacity-blocks", 1)
    assert "--capacity-blocks" in err


def test_more_memory_than_there_is_address_space_is_refused(refused):
    assert "memory" in refused("--memory", 2**63)


def test_a_wrong_line_is_named_with_its_file_and_field(refused, write):
    trace = write("trace.jsonl", LINE, LINE | {"input_length": -3})
    assert f"{trace}:2: input_length:" in refused("--trace", trace)


def test_a_cut_off_last_line_is_named(refused, write):
    trace = write("trace.jsonl", LINE)
    trace.write_text(trace.read_text() + '{"timestamp": 1, "inp')
    assert f"{trace}:2:" in refused("--trace", trace)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--format", "fp8"),
        ("--policy", "nonesuch"),
        ("--bytes", "some"),
        ("--block-tokens", "0"),
        ("--block-tokens", "-16"),
        ("--block-tokens", "x"),
        ("--block-tokens", "2147483647"),
        ("--requests", "0"),
        ("--requests", "1.5"),
        ("--capacity-blocks", "-1"),
        ("--snapshot-interval", "-1"),
        ("--nonsense", "1"),
    ],
)
def test_a_wrong_option_is_named(refused, option, value):
    err = refused(option, value)
    assert option in err or value in err or option.strip("-").replace("-", "_") in err


# ---- Real inputs --------------------------------------------------------------------------------


def test_block_hit_rates_of_the_conversation_trace_are_those_of_exact_lru(run, write):
    trace = traces_path("conversation_trace.jsonl")
    options = ["--model", write("config.json", LLAMA), "--trace", trace, "--bytes", "none"]
    options += ["--policy", "lru"]
    for capacity, rate in [(10_000, 0.2116), (50_000, 0.3546)]:
        report = replayed(run, *options, "--block-tokens", 512, "--capacity-blocks", capacity)
        assert report["requests"] == 12_031
        assert report["block_hit_rate"] == pytest.approx(rate, abs=1e-4)


def test_the_first_of_the_conversation_trace_on_a_small_hybrid(run, write):
    report = replayed(
        run,
        *("--model", write("config.json", SMALL_HYBRID), "--memory", "64MiB"),
        *("--trace", traces_path("conversation_trace.jsonl"), "--requests", 400),
    )
    assert report["reused_tokens"] > 0
    assert report["evicted_blocks"] > 0
    assert report["rejected"] == 0


@pytest.mark.parametrize(
    "config",
    [
        "Qwen--Qwen3-8B.json",
        "Qwen--Qwen3.5-9B.json",
        "deepseek-ai--DeepSeek-V3.json",
        "maxtext_gemma3-4b.json",
        "mistral-nemo-instruct-2407.json",
        "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16.json",
        "tfdefault__mamba2.json",
        "tfdefault__qwen3_next.json",
        "openai--gpt-oss-20b.json",
    ],
)
def test_real_configs_are_served(run, write, config):
    trace = write("trace.jsonl", *[LINE] * 2, LINE | {"hash_ids": [1, 3]})
    report = replayed(run, "--model", corpus_path(f"configs/{config}"), "--trace", trace)
    assert report["reused_tokens"] > 1000


@pytest.mark.parametrize(
    ("redirect", "code", "error"),
    [
        (">/dev/full", 2, "kvcache schema: error: cannot write: [Errno 28]"),
        (">&-", 0, ""),
        ("2>&-", 0, ""),
        (">&- 2>&-", 0, ""),
    ],
)
def test_output_that_cannot_be_written_is_no_traceback(
    redirect: str, code: int, error: str
) -> None:
    command = f'"{sys.executable}" -P -m kvcache schema {redirect}'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert done.stderr.startswith(error)
    assert done.stderr.count("\n") == (1 if error else 0)
