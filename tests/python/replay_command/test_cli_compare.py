"""`kvcache replay` with several policies, models, formats or budgets, as a person or a script."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.corpus import traces_path

from kvcache.errors import InvalidArgumentError
from kvcache.models import from_config
from kvcache.replay.compare import compare
from kvcache.replay.demo import DEMO_MODEL
from kvcache.replay.job import Job

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "intermediate_size": 128,
    "vocab_size": 1000,
}
LINE = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}
RUN_KEYS = (
    "model format policy memory_bytes capacity_blocks requests rejected rejected_tokens blocks "
    "block_hits block_hits_by_half block_hit_rate prompt_tokens reused_tokens token_hit_rate "
    "flop_hit_rate lost_tokens gap_closed gap_closed_by_half seconds passed"
)
LOST_KEYS = {"new", "attention", "window", "snapshot", "last_token"}


def compared(run, *args):
    code, out, err = run(*args, "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert list(document) == ["schema", "trace", "bytes", "requests", "prompt_tokens", "runs"]
    for each in document["runs"]:
        assert " ".join(each) == RUN_KEYS
        if each["lost_tokens"] is not None:
            assert set(each["lost_tokens"]) == LOST_KEYS
            counted = each["reused_tokens"] + each["rejected_tokens"]
            assert counted + sum(each["lost_tokens"].values()) == each["prompt_tokens"]
        assert sum(each["block_hits_by_half"]) == each["block_hits"] <= each["blocks"]
    return document


def test_models_formats_memories_and_policies_are_compared_in_one_run(run, write):
    models = [write("one.json", LLAMA), write("two.json", DEMO_MODEL)]
    document = compared(
        run,
        *("--model", *models, "--format", "f16,int8", "--memory", "4MiB,16MiB"),
        *("--policy", "lru,price_list", "--requests", 60),
    )
    runs = document["runs"]
    assert (document["requests"], document["trace"], document["bytes"]) == (60, "generated", "none")
    keys = [(r["model"], r["format"], r["memory_bytes"] >> 20, r["policy"]) for r in runs]
    assert keys == [
        (model, form, memory, policy)
        for model in ("one", "two")
        for form in ("f16", "int8")
        for memory in (4, 16)
        for policy in ("lru", "price_list", "clairvoyant", "infinite")
    ]
    best = {}
    for each in runs:
        setting = each["model"], each["format"], each["memory_bytes"]
        best.setdefault(setting, {})[each["policy"]] = each
    for found in best.values():
        for policy in ("lru", "price_list"):
            clairvoyant, infinite = found["clairvoyant"], found["infinite"]
            assert found[policy]["reused_tokens"] <= clairvoyant["reused_tokens"]
            assert clairvoyant["reused_tokens"] <= infinite["reused_tokens"]
            if not found[policy]["rejected"]:  # what is known is reused or lost for a reason
                lost = found[policy]["lost_tokens"]
                known = found[policy]["reused_tokens"] + sum(lost.values()) - lost["new"]
                assert known - document["requests"] <= infinite["reused_tokens"] <= known


def test_bytes_are_checked_where_asked_for(run):
    document = compared(
        run, "--policy", "lru,gdsf", "--bytes", "real", "--requests", 20, "--processes", 1
    )
    assert document["bytes"] == "real"
    assert [each["policy"] for each in document["runs"]] == [
        "lru",
        "gdsf",
        "clairvoyant",
        "infinite",
    ]


def test_lru_comes_along_and_a_gap_of_nothing_is_none(run):
    document = compared(run, "--policy", "gdsf,s3fifo", "--memory", "1GiB", "--requests", 10)
    assert [each["policy"] for each in document["runs"]][:3] == ["lru", "gdsf", "s3fifo"]
    assert {each["gap_closed"] for each in document["runs"]} == {None}
    _, out, _ = run("--policy", "gdsf,s3fifo", "--memory", "1GiB", "--requests", 10)
    assert "nan" not in out


def test_a_request_too_large_for_one_budget_counts_as_asked_for_and_missed(run, write):
    turns = [LINE | {"input_length": 512 * n, "hash_ids": list(range(n))} for n in (8, 8, 10, 8)]
    options = ["--model", write("c.json", LLAMA), "--trace", write("t.jsonl", *turns)]
    options += ["--block-tokens", 512, "--capacity-blocks", "9,10", "--policy", "lru"]
    small, _, _, large, _, _ = compared(run, *options)["runs"]
    assert (small["rejected"], small["rejected_tokens"]) == (1, 5120)
    assert (small["blocks"], small["block_hits"]) == (34, 16)
    assert (large["rejected"], large["blocks"], large["block_hits"]) == (0, 34, 24)
    _, out, _ = run(*options)
    assert "up to 1 of 4" in out


def test_a_budget_in_which_nothing_fits_is_a_row_and_all_of_them_an_error(run, refused, write):
    options = ["--model", write("c.json", LLAMA), "--trace", write("t.jsonl", *[LINE] * 2)]
    small, *_ = compared(run, *options, "--block-tokens", 16, "--capacity-blocks", "2,64")["runs"]
    assert (small["rejected"], small["block_hits"], small["rejected_tokens"]) == (2, 0, 1200)
    assert "no request fits" in refused(
        *options, "--block-tokens", 16, "--capacity-blocks", "2,3", "--bytes", "none"
    )
    assert "--memory" in refused(*options, "--memory", "64KiB,1KiB")


def test_no_policy_finds_more_blocks_than_the_bounds(run, write):
    whole = [{"token_ids": list(range(n)), "output_length": 1} for n in (100, 40)]
    options = ["--trace", write("t.jsonl", *whole), "--policy", "lru,gdsf"]
    options += ["--bytes", "none", "--model", write("c.json", LLAMA)]
    runs = compared(run, *options, "--capacity-blocks", 10)["runs"]
    assert [each["block_hits"] for each in runs] == [3, 3, 3, 3]
    for seed in range(3):
        options = ["--seed", seed, "--requests", 80, "--block-tokens", 32]
        runs = compared(run, *options, "--policy", "all", "--capacity-blocks", 50)["runs"]
        *found, clairvoyant, infinite = (each["block_hits"] for each in runs)
        assert max(found) <= clairvoyant <= infinite


def test_the_same_seed_is_the_same_trace(run):
    def tokens(seed):
        _, out, _ = run("--requests", 30, "--bytes", "none", "--seed", seed, "--json")
        return json.loads(out)["prompt_tokens"]

    assert tokens(1) == tokens(1) != tokens(2)


@pytest.mark.parametrize("columns", [80, 60, 200])
def test_tables_keep_to_the_terminal(run, write, monkeypatch, columns):
    monkeypatch.setattr("kvcache.cli.console._PIPE_COLUMNS", columns)
    models = [write("a-model-with-quite-a-long-name.json", LLAMA), write("two.json", DEMO_MODEL)]
    code, out, err = run(
        *("--model", *models, "--policy", "all", "--memory", "2MiB,8MiB", "--requests", 40),
    )
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert max(len(line.rstrip()) for line in lines) <= columns
    heads = [line for line in lines if "policy" in line]
    assert all("of tokens" in heads[0] and "price_list" in out for _ in heads)


def test_models_are_called_by_their_files_or_folders(run, write, tmp_path):
    paths = [write("a.json", LLAMA)]
    for folder in ("Model-1.7B", "other/Model-1.7B"):
        (tmp_path / folder).mkdir(parents=True)
        paths.append(write(f"{folder}/config.json", LLAMA))
    paths.append(tmp_path / "Model-1.7B")
    (tmp_path / "link.json").symlink_to(paths[0])  # as in a store of blobs
    paths.append(tmp_path / "link.json")
    runs = compared(run, "--model", *paths, "--requests", 2, "--policy", "lru")["runs"]
    names = ["a", "Model-1.7B", "Model-1.7B (2)", "Model-1.7B (3)", "link"]
    assert list(dict.fromkeys(each["model"] for each in runs)) == names


def test_all_policies_are_asked_for_in_a_list_as_well(run):
    listed = [compared(run, "--policy", p, "--requests", 2)["runs"] for p in ("lru,all", "all")]
    assert {each["policy"] for each in listed[0]} == {each["policy"] for each in listed[1]}
    assert len(listed[0]) == len(listed[1]) > 4


def test_a_name_in_brackets_is_shown_as_it_is(run, write):
    models = [write("[bold]a.json", LLAMA), write("b[1].json", LLAMA)]
    code, out, _ = run("--model", *models, "--requests", 2)
    assert code == 0
    assert "[bold]a" in out
    assert "b[1]" in out


# ---- Files --------------------------------------------------------------------------------------


@pytest.mark.parametrize("several", [[], ["--policy", "lru,gdsf"]])
def test_out_is_what_json_prints(run, tmp_path, several):
    path = tmp_path / "out.json"
    code, out, _ = run("--requests", 5, *several, "--out", path, "--json")
    assert (code, path.read_text()) == (0, out)


@pytest.mark.parametrize("option", ["--out", "--plot"])
def test_a_file_that_cannot_be_written_is_refused_before_the_run(
    refused, tmp_path, option, monkeypatch
):
    monkeypatch.setattr("kvcache.replay.job.Job.requests", None)  # reads nothing
    assert f"{option}: {tmp_path}: is a folder" in refused(option, tmp_path)
    missing = tmp_path / "none" / "file.png"
    assert f"{option}: {missing}" in refused(option, missing)
    assert not missing.parent.exists()


def test_a_plot_without_the_extra_is_refused_before_the_run(refused, tmp_path, monkeypatch):
    monkeypatch.setattr("kvcache.replay.job.Job.requests", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert "pip install 'kvcache[plot]'" in refused("--plot", tmp_path / "file.png")


def test_a_plot_of_an_unknown_form_is_refused_before_the_run(refused, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("kvcache.replay.job.Job.requests", None)
    assert "png" in refused("--plot", tmp_path / "file.jpog")
    assert "png" in refused("--plot", tmp_path / "file")
    assert "png" in refused("--plot", tmp_path / "file.pgf")
    models = ["--model", *[tmp_path / "none.json"] * 51, "--format", "f16,int8"]
    assert "102 pairs" in refused("--plot", tmp_path / "file.png", *models)


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_plot_that_fails_loses_nothing_of_the_comparison(run, tmp_path, monkeypatch, more):
    figure = pytest.importorskip("matplotlib.figure").Figure

    def fail(*_):
        raise RuntimeError("xelatex not found")

    monkeypatch.setattr(figure, "savefig", fail)
    plot, written = tmp_path / "rates.png", tmp_path / "rates.json"
    code, out, err = run("--requests", 2, "--plot", plot, "--out", written, *more)
    assert (code, err.count("\n")) == (2, 1)
    assert f"--plot: {plot}: RuntimeError: xelatex not found" in err
    assert "clairvoyant" in out
    assert "clairvoyant" in written.read_text()


def test_a_plot_is_drawn_of_one_run_as_well(run, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "rates.png"
    code, out, err = run("--requests", 20, "--plot", path)
    assert (code, err) == (0, "")
    assert "clairvoyant" in out
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_plot_is_drawn_when_the_reader_of_the_table_leaves(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "rates.png"
    command = [sys.executable, "-P", "-m", "kvcache", "replay", "--requests", "2", "--plot", path]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert done.returncode != 0
    assert done.stderr == b""
    assert path.read_bytes().startswith(b"\x89PNG")


# ---- Wrong inputs -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--memory", "1GiB,"),
        ("--memory", "1GiB,-1"),
        ("--memory", ","),
        ("--format", "f16,nonesuch"),
        ("--format", ""),
        ("--policy", "lru,"),
        ("--policy", ""),
        ("--policy", "all,nonesuch"),
        ("--capacity-blocks", "1,0"),
        ("--capacity-blocks", "9" * 5000),
        ("--capacity-blocks", "1e3"),
        ("--processes", "0"),
        ("--requests", "-1"),
        ("--seed", "-1"),
        ("--model", ""),
        ("--trace", ""),
    ],
)
def test_a_wrong_option_is_named(refused, option, value):
    err = refused(f"{option}={value}")
    assert option in err or "config.json" in err or ".: " in err
    assert len(err) < 300


@pytest.mark.parametrize("more", [["--bytes", "real"], ["--bytes", "real", "--policy", "lru,gdsf"]])
def test_more_real_bytes_than_the_machine_has_are_refused(run, refused, monkeypatch, more):
    monkeypatch.setattr("kvcache.replay.job.available_memory", lambda: 32 << 20)
    err = refused("--memory", "8MiB,64MiB", "--requests", 2, *more)
    assert "64 MiB is more than the 32 MiB" in err
    assert "64 MiB is more than the 32 MiB" in refused("--memory", "64MiB", "--requests", 2)
    assert run("--memory", "64MiB", "--requests", 2, "--bytes", "none")[0] == 0


def test_a_model_that_cannot_be_served_is_refused_by_name(refused, write):
    broken = write("broken.json", LLAMA | {"num_hidden_layers": -2})
    assert "broken.json" in refused("--model", write("one.json", LLAMA), broken)


def test_standard_input_is_a_model_or_a_trace(write):
    command = [sys.executable, "-P", "-m", "kvcache", "replay", "--requests", "3", "--json"]
    config = write("config.json", LLAMA).read_text()

    def piped(*options, text):
        return subprocess.run(
            [*command, *options], input=text, capture_output=True, text=True, check=False
        )

    done = piped("--model", "-", text=config)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["model"] == "llama"
    several = piped("--model", "-", "--policy", "lru,gdsf", text=config)
    assert (several.returncode, several.stderr) == (0, "")
    trace = piped("--trace", "-", "--policy", "lru,gdsf", text=json.dumps(LINE) + "\n")
    assert (trace.returncode, trace.stderr) == (0, "")
    both = piped("--model", "-", "--trace", "-", text=config)
    assert (both.returncode, both.stderr.count("\n")) == (2, 1)
    empty = piped("--model", "-", text="")
    assert (empty.returncode, empty.stderr.count("\n")) == (2, 1)


@pytest.mark.parametrize(
    ("missing", "options"),
    [
        ("policies", {"policies": []}),
        ("capacities", {"policies": ["lru"], "capacities": []}),
        ("processes", {"policies": ["lru"], "processes": 0}),
        ("processes", {"policies": ["lru"], "processes": -3}),
    ],
)
def test_a_comparison_of_nothing_is_refused(missing, options):
    job = Job(model=from_config(LLAMA), trace=None, limit=2, memory=1 << 20, real_bytes=False)
    with pytest.raises(InvalidArgumentError, match=missing):
        compare(job, **options)


# ---- Processes ----------------------------------------------------------------------------------


def children(pid):
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return path.read_text().split() if path.exists() else []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_an_interrupted_comparison_leaves_no_process(number, code):
    command = [sys.executable, "-P", "-m", "kvcache", "replay", "--policy", "lru,gdsf,price_list"]
    command += ["--bytes", "real", "--memory", "32MiB,48MiB,64MiB,128MiB", "--processes", "2"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        # A shell's background jobs ignore it, and so would all they start.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 60
    while len(started := children(process.pid)) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(1)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does
    else:
        process.kill()
    _, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert b"Traceback" not in err
    while time.monotonic() < deadline and any(Path(f"/proc/{pid}").exists() for pid in started):
        time.sleep(0.05)
    assert started
    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]


def test_an_interrupt_while_the_command_is_imported_ends_it_quietly():
    code = """
import runpy, sys
class Interrupt:
    def find_spec(self, name, *rest):
        if name == "kvcache.cli.replay":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
runpy.run_module("kvcache", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


# ---- Real inputs --------------------------------------------------------------------------------


def test_known_figures_of_the_conversation_trace(run, write):
    document = compared(
        run,
        *("--model", write("config.json", LLAMA), "--bytes", "none", "--block-tokens", 512),
        *("--trace", traces_path("conversation_trace.jsonl"), "--capacity-blocks", "1000,10000"),
        *("--policy", "lru"),
    )
    rates = [(each["policy"], round(each["block_hit_rate"], 4)) for each in document["runs"]]
    assert rates == [
        ("lru", 0.0445),
        ("clairvoyant", 0.1907),
        ("infinite", 0.3664),
        ("lru", 0.2116),
        ("clairvoyant", 0.3664),
        ("infinite", 0.3664),
    ]


def test_every_key_of_the_document_is_documented(run):
    text = (Path(__file__).parents[3] / "docs" / "replay.md").read_text()
    first_cells = " ".join(re.findall(r"^\| ([^|]+) \|", text, re.MULTILINE))
    words = set(re.findall(r"\w+", first_cells))
    assert words >= {*RUN_KEYS.split(), "schema", "trace", "bytes", "requests", "runs"}
    single = json.loads(run("--requests", 2, "--json")[1])
    assert words >= set(single)
    assert all(f"`{name}`" in text for name in LOST_KEYS)
