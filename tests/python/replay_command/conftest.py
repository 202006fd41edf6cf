"""Running `kvcache replay` as a person or a script does."""

import json

import pytest

from kvcache.cli import main


@pytest.fixture
def run(capsys):
    """Runs a command: its exit code, output and errors."""

    def run(*args):
        try:
            code = main(["replay", *map(str, args)])
        except SystemExit as stop:
            code = stop.code
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def refused(run):
    """Runs a command that must fail with exit code 2 and one line of error, which is returned."""

    def refused(*args):
        code, out, err = run(*args)
        assert code == 2
        assert out == ""
        assert err.startswith("kvcache")
        assert err.count("\n") == 1
        assert "Traceback" not in err
        return err

    return refused


@pytest.fixture
def write(tmp_path):
    """Writes JSON lines, such as a trace."""

    def write(name, *values):
        path = tmp_path / name
        path.write_text("".join(json.dumps(value) + "\n" for value in values))
        return path

    return write
