"""`kvcache plan --emit cpp`: a C++ server gets its model as a header, and needs no JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.native import (
    CMAKE_CONFIG,
    ROOT,
    configure,
    find_tool,
    missing_toolchain,
    must,
    package_folder,
)

from kvcache import InvalidArgumentError, StateDecl, StatePlan, UnsupportedError, models
from kvcache.cli import main
from kvcache.planner.emit_cpp import emit_cpp

HERE = Path(__file__).parent
HYBRID = ROOT / "benchmarks/replay/qwen3_next_8_layers.json"


@pytest.fixture
def hybrid(tmp_path: Path) -> Path:
    path = tmp_path / "hybrid.json"
    path.write_text(HYBRID.read_text())
    return path


def emit(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    assert main(["plan", "--emit", "cpp", *map(str, args)]) == 0
    return capsys.readouterr().out


@pytest.mark.skipif(missing_toolchain() is not None, reason=str(missing_toolchain()))
def test_a_server_makes_the_planned_cache_of_the_header(
    hybrid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--tokens", 4096, "--batch", 3, "--prefix-snapshots", 5]
    (tmp_path / "hybrid.h").write_text(emit(capsys, hybrid, *options))
    build = tmp_path / "build"
    configured = configure(
        HERE / "emitted",
        build,
        f"-Dkvcache_ROOT={package_folder(CMAKE_CONFIG)}",
        f"-DHEADERS={tmp_path}",
    )
    assert configured.returncode == 0, configured.stdout
    must(find_tool("cmake"), "--build", build)
    plan = StatePlan.for_model(models.from_config(hybrid), memory="1MiB")
    sequence = plan.sequence_bytes(4096)
    memory = 3 * sequence + 5 * plan.slot_bytes
    says = f"{plan.fingerprint} {plan.block_bytes} {plan.slot_bytes} {sequence} {memory}"
    assert must(build / "consumer").splitlines() == [f"header {says}", f"library {says}", "opened"]


def test_the_bytes_are_those_of_the_report(
    hybrid: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header = emit(capsys, hybrid, "--tokens", 4096, "--format", "int8", "--memory", "64MiB")
    assert main(["plan", str(hybrid), "--format", "int8", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    block, slot, memory = (
        int(re.search(rf"{name} = (\d+)", header).group(1))
        for name in ("kBlockBytes", "kSlotBytes", "kMemoryBytes")
    )
    assert (block, slot) == (16 * report["token_bytes"], report["fixed_bytes"])
    assert memory == 64 << 20
    assert header.count("kvcache::DType::kI8") == 4  # keys and values of two layers


def test_windows_and_costs_are_in_the_header(tmp_path: Path, capsys) -> None:
    config = {
        "model_type": "gemma3_text",
        "num_hidden_layers": 6,
        "hidden_size": 1152,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "intermediate_size": 6912,
        "vocab_size": 262144,
        "sliding_window": 512,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
    }
    path = tmp_path / "3 times \\ \u00fc.json"
    path.write_text(json.dumps(config))
    header = emit(capsys, path)
    costs = models.from_config(path).costs
    assert f"kCosts{{{costs.flops_per_token!r}, {costs.flops_per_token_per_position!r}}}" in header
    assert "namespace m3_times_layout {" in header
    assert header.isascii()
    windows = [int(w) for w in re.findall(r"kF16,\n +2, \{\{1, 256, 0, 0\}\}, 0, (\d+)", header)]
    assert windows == [512] * 10 + [0] * 2


def test_what_a_cache_cannot_store_is_refused(hybrid: Path, capsys) -> None:
    for args, text in (
        ([hybrid, "--format", "fp8"], "hybrid.json: l3.attention.keys: fp8 rows"),
        ([hybrid, hybrid], "one CONFIG.json"),
        ([hybrid, "--json"], "without --json"),
        ([hybrid, "--tokens", 1 << 40, "--batch", 1 << 31], "do not fit 64 bits"),
        ([hybrid, "--batch", 1 << 40], "sequences"),
    ):
        assert main(["plan", "--emit", "cpp", *map(str, args)]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert text in err


def test_more_axes_than_a_header_holds_are_refused() -> None:
    decl = StateDecl("s", 0, "state.recurrent", "recurrent", "main", "f32", (1, 2, 3, 4, 5))
    with pytest.raises(InvalidArgumentError, match="s: a header holds up to 4 axes, got 5"):
        emit_cpp([decl], name="m", model_type="m", format="f16", tokens=1)


def test_fp8_rows_are_unsupported() -> None:
    decl = StateDecl("k", 0, "attention.keys", "paged_kv", "main", "fp8", (1, 8))
    with pytest.raises(UnsupportedError, match="fp8"):
        emit_cpp([decl], name="m", model_type="m", format="fp8", tokens=1)
