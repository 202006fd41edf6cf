import pytest

from kvcache.errors import InvalidArgumentError
from kvcache.units import format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1", 1),
        (4096, 4096),
        ("64B", 64),
        ("2GiB", 2 << 30),
        ("2g", 2 << 30),
        (" 512 mib ", 512 << 20),
        ("1.5KiB", 1536),
        ("2GB", 2_000_000_000),
    ],
)
def test_parse_bytes_reads_what_people_write(text, count):
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GiB",
        "0",
        "0GiB",
        "-1",
        "1e9",
        "2XiB",
        "2 GiB x",
        "nan",
        "16777216TiB",
        "9" * 5000,
        "\u0662GiB",
        True,
    ],
)
def test_parse_bytes_refuses_other_text_and_names_the_knob(text):
    with pytest.raises(InvalidArgumentError, match=r"^--memory: "):
        parse_bytes(text, name="--memory")


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (64 << 20, "64 MiB")]
)
def test_format_bytes_is_short(count, text):
    assert format_bytes(count) == text
