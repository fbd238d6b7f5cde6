"""The command as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

import natgrad as ng
from natgrad.benchmarks import groups
from natgrad.cli import main
from natgrad.experiments import structures


def test_structures_draws_and_lists(tmp_path, capsys):
    assert main(["structures", "--out", str(tmp_path), "--p", "64"]) == 0
    out = capsys.readouterr().out
    assert "SparseCholesky(chain)" in out
    assert "Kronecker" in out
    assert (tmp_path / "structures.png").read_bytes().startswith(b"\x89PNG")


def test_the_largest_table_takes_seconds(capsys):
    assert main(["structures", "--p", "16384", "--json"]) == 0
    rows = {row["structure"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["Dense()"]["numbers"] == 16384**2
    assert rows["Dense()"]["pull"] == rows["Toeplitz(upper=True)"]["pull"] == 16384


def test_products_listed_are_those_that_a_pull_makes():
    for (name, make, size), row in zip(structures.EXAMPLES, structures.table(16), strict=True):
        H = ng.Hessian(lambda V: 4 * V)
        make(16).identity(size(16)).pull(H, diagonal=torch.full((16,), 4.0))
        assert (row["structure"], row["pull"]) == (name, H.products)


@pytest.mark.parametrize("arguments", [["structures"], ["bench", "groups"]])
def test_a_missing_matplotlib_is_told_before_the_work(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for module, work in ((structures, "table"), (groups, "copy_bandwidth")):
        monkeypatch.setattr(module, work, lambda *_: pytest.fail("worked first"))
    assert main([*arguments, "--out", str(tmp_path)]) == 1
    assert 'pip install "natgrad[plots]"' in capsys.readouterr().err


def test_structures_as_json(tmp_path, capsys):
    assert main(["structures", "--out", str(tmp_path), "--json"]) == 0
    rows = {row["structure"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["Dense()"]["numbers"] == 1024**2
    assert rows["Lower(2)"]["numbers"] == 2 * 1024 + 1022
    assert rows["Lower(2)"]["pull"] == 2


def test_a_reader_that_leaves_is_no_error():
    command = [sys.executable, "-m", "natgrad", "structures", "--p", "64", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert process.returncode == 141


def test_bench_groups_writes_its_results(tmp_path, capsys):
    assert main(["bench", "groups", "--out", str(tmp_path), "--largest", "16000", "--repeats", "1"]) == 0
    result = json.loads((tmp_path / "groups.json").read_text())
    assert {row["operation"] for row in result["rows"]} == {"apply", "solve", "product", "pull", "retract"}
    assert {e["in"] for e in result["exponents"]} == {"p", "k"}
    assert (tmp_path / "groups.png").exists()
    assert "exponent in k" in capsys.readouterr().out
    assert result["machine"]["processor"]
    (tmp_path / "groups.png").unlink()
    assert main(["bench", "groups", "--out", str(tmp_path), "--redraw"]) == 0
    assert (tmp_path / "groups.png").exists()


@pytest.mark.parametrize(
    "arguments", [["structures", "--p", "15"], ["structures", "--p", "65536"], ["bench", "groups", "--largest", "10"]]
)
def test_bad_arguments_are_one_line(arguments, capsys):
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"natgrad {arguments[0]}: --")
    assert error.count("\n") == 1


def test_module_and_version():
    result = subprocess.run([sys.executable, "-m", "natgrad", "--version"], capture_output=True, text=True, check=True)
    assert result.stdout.startswith("natgrad 0.")
    result = subprocess.run([sys.executable, "-m", "natgrad"], capture_output=True, text=True)
    assert result.returncode == 2
    assert "structures" in result.stderr
