"""What the documents tell people to write in Python works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import ROOT

pytest.importorskip("matplotlib").use("agg")
for needed in ("duckdb", "joblib", "pandas", "polars", "pyarrow"):
    pytest.importorskip(needed)

DOCUMENTS = ["python/README.md", "docs/book/src/python.md", "docs/book/src/cluster.md"]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_blocks_of_a_document_run(
    document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / document).read_text(), re.M | re.S)
    assert blocks
    for shared in ("scenarios", "studies"):
        (tmp_path / shared).symlink_to(ROOT / shared)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    for number, block in enumerate(blocks):
        exec(compile(block, f"{document}, block {number}", "exec"), names)
