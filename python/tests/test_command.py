"""The command that `midhop sim sweep --engine` starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from conftest import QUICK, Program


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, "-m", "midhop", "sweep", *map(str, arguments)]
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
