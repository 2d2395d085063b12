"""The notebooks run from their first cell to their last."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conftest import ROOT

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

NOTEBOOKS = sorted((ROOT / "python" / "notebooks").glob("*.ipynb"))

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    # What is committed is what a person wrote: no outputs, which would be of some earlier build.
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs for cell in code)
    nbclient.NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
    outputs = [output for cell in code for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs), "no picture is drawn"
    if kept := os.environ.get("MIDHOP_NOTEBOOKS"):
        Path(kept).mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, Path(kept) / path.name)


def test_there_are_three() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["first-run", "published-figure", "sweep"]
