"""`kvcache plan` as a person or a script meets it: tables, JSON, pictures, one line of error."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from kvcache.cli import main
from kvcache.replay.demo import DEMO_MODEL

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
GEMMA = LLAMA | {
    "model_type": "gemma3_text",
    "num_hidden_layers": 6,
    "sliding_window": 1024,
    "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
}


@pytest.fixture
def write(tmp_path: Path):
    def writer(config: Any, name: str = "model.json") -> str:
        path = tmp_path / name
        path.write_text(config if isinstance(config, str) else json.dumps(config))
        return str(path)

    return writer


def plan(capsys: pytest.CaptureFixture[str], *args: str) -> Any:
    assert main(["plan", *args, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def error(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    try:
        code = main(["plan", *args])
    except SystemExit as stop:  # argparse ends by itself
        code = stop.code
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    return err


def test_the_table_says_what_a_layer_keeps(write, capsys) -> None:
    assert main(["plan", write(GEMMA), "--tokens", "4096", "--memory", "1GiB"]) == 0
    out = capsys.readouterr().out
    for text in ("1,024", "4,096", "20,480", "by state kind", "paged_kv", "growth: 20,971,520 B"):
        assert text in out


def test_json_has_groups_growth_and_terms(write, capsys) -> None:
    found = plan(capsys, write(GEMMA), "--tokens", "4096", "--batch", "2")
    sliding, full = found["groups"]
    assert (sliding["layers"], sliding["positions"], full["positions"]) == (5, 1024, 4096)
    assert sliding["sequence_bytes"] == 5 * 1024 * 4096
    assert found["sequence_bytes"] == 5 * 1024 * 4096 + 4096 * 4096
    assert found["total_bytes"] == 2 * found["sequence_bytes"]
    assert found["growth"] == {
        "fixed_bytes": 5 * 1024 * 4096,
        "token_bytes": 4096,
        "from_tokens": 1024,
    }
    assert found["terms_bytes"] == found["total_bytes"]


def test_memory_says_how_much_fits(write, capsys) -> None:
    found = plan(capsys, write(LLAMA), "--tokens", "1024", "--memory", "1GiB")
    assert found["fit"] == {"memory_bytes": 2**30, "tokens": 8192, "sequences": 8}


def test_what_does_not_fit_is_said(write, capsys) -> None:
    assert plan(capsys, write(LLAMA), "--memory", "1KiB")["fit"]["tokens"] is None
    assert main(["plan", write(LLAMA), "--memory", "1KiB"]) == 0
    assert "hold no positions" in capsys.readouterr().out


def test_drafts_and_snapshots_have_terms_of_their_own(write, capsys) -> None:
    found = plan(capsys, write(DEMO_MODEL), "--drafts", "3", "--prefix-snapshots", "2")
    terms = {(term["kind"], term["holding"]): term["bytes"] for term in found["terms"]}
    live = terms["recurrent", "live"]
    assert live == found["fixed_bytes"]
    assert terms["recurrent", "steps"] > live
    assert terms["recurrent", "checkpoint"] == 2 * live  # one sequence and the dummy
    assert terms["prefix_snapshot", "copies"] >= 2 * live


def test_a_format_may_differ_for_keys_and_values(write, capsys) -> None:
    found = plan(capsys, write(LLAMA), "--format", "q8_0/q4_0")
    assert found["token_bytes"] == 32 * 1024 * (34 + 18) / 32


def test_ranks_share_heads(write, capsys) -> None:
    assert plan(capsys, write(LLAMA), "--tp", "4")["token_bytes"] == 131_072 // 4


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llama.cpp", "transformers"])
def test_every_engine_reports(write, capsys, engine: str) -> None:
    args = [write(DEMO_MODEL), "--as", engine, "--memory", "1GiB", "--drafts", "1"]
    report = plan(capsys, *args)["engine"]
    assert report["engine"] == engine
    assert report["bytes"] == sum(part["bytes"] for part in report["allocations"])
    assert report["capacity_tokens"] > 0
    assert main(["plan", *args]) == 0
    assert f"as {engine}" in capsys.readouterr().out


def test_several_models_are_a_list(write, capsys) -> None:
    found = plan(capsys, write(LLAMA), write(GEMMA, "gemma.json"))
    assert [each["name"] for each in found] == ["model", "gemma"]


def test_plot_draws_every_model(write, capsys, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "state.png"
    files = [write(LLAMA), write(DEMO_MODEL, "demo.json"), write(LLAMA, r"a$\frac$.json")]
    assert main(["plan", *files, "--plot", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")


def test_plot_without_matplotlib_says_what_to_install(write, capsys, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert "pip install 'kvcache[plot]'" in error(capsys, write(LLAMA), "--plot", "a.png")


def test_a_picture_nobody_can_write_is_an_error(write, capsys, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert "no.such" in error(capsys, write(LLAMA), "--plot", str(tmp_path / "no.such"))
    missing = tmp_path / "no" / "folder.png"
    assert "folder.png: No such file" in error(capsys, write(LLAMA), "--plot", str(missing))


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ("{", "model.json"),
        ("[]", "model.json"),
        ({"model_type": "no such type"}, "model_type"),
        (LLAMA | {"num_hidden_layers": "many"}, "num_hidden_layers"),
        (LLAMA | {"num_key_value_heads": -1}, "num_key_value_heads"),
        (LLAMA | {"head_dim": 10**30}, "head_dim"),
    ],
)
def test_a_wrong_config_is_one_line_with_file_and_field(write, capsys, config, text) -> None:
    message = error(capsys, write(config))
    assert "model.json" in message
    assert text in message


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--tokens", "0"], "--tokens"),
        (["--tokens", "many"], "--tokens"),
        (["--batch", "-1"], "--batch"),
        (["--memory", "lots"], "--memory"),
        (["--format", "q99"], "--format: unknown format 'q99'"),
        (["--as", "nothing"], "--as"),
        (["--tp", "3"], "num_key_value_heads"),
        (["--tokens", str(2**40), "--batch", str(2**40)], "64 bits"),
    ],
)
def test_a_wrong_option_is_one_line(write, capsys, args: list[str], text: str) -> None:
    assert text in error(capsys, write(LLAMA), *args)


def test_rows_that_a_format_cannot_store_are_refused(write, capsys) -> None:
    config = LLAMA | {"head_dim": 40, "num_key_value_heads": 1}
    message = error(capsys, write(config), "--format", "q8_0")
    assert "model.json" in message
    assert "blocks of 32" in message


def test_a_missing_file_is_named(capsys) -> None:
    assert "no/such/config.json" in error(capsys, "no/such/config.json")
