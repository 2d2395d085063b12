"""The commands that `--engine` of the program starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from conftest import QUICK, Program


def command(*arguments: object, name: str = "sweep") -> subprocess.CompletedProcess[str]:
    call = [sys.executable, "-m", "midhop", name, *map(str, arguments)]
    return subprocess.run(call, capture_output=True, text=True, check=False)


def test_an_error_is_told_as_the_program_tells_it(program: Program, tmp_path: Path) -> None:
    bad = ("--set", "links.lnk.loss=1", "--out", tmp_path)
    ours = command(QUICK, "--engine", "ray", *bad)
    theirs = program("sim", "sweep", QUICK, *bad)
    assert (ours.returncode, ours.stdout) == (64, "")
    assert ours.stderr == theirs.stderr


def test_a_cluster_that_does_not_answer_is_an_error_with_a_hint(tmp_path: Path) -> None:
    ours = command(QUICK, "--engine", "dask", "--out", tmp_path)
    assert ours.returncode == 64
    assert ours.stderr.startswith("error: no engine is called `dask`\nhint: ")


def test_a_study_that_is_none_is_an_error_as_the_program_has_it(
    program: Program, tmp_path: Path
) -> None:
    ours = command("nowhere", "--engine", "ray", "--out", tmp_path, name="study")
    theirs = program("reproduce", "nowhere", "--in", "sim")
    assert (ours.returncode, ours.stdout) == (64, "")
    assert ours.stderr == theirs.stderr
    ours = command("far-proxy", "--engine", "dask", "--out", tmp_path, name="study")
    assert ours.returncode == 64
    assert ours.stderr.startswith("error: no engine is called `dask`\nhint: ")
