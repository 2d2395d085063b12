from __future__ import annotations

import midhop
import pytest
from conftest import QUICK

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("agg")


def test_means_are_drawn_with_their_intervals() -> None:
    records = midhop.sweep(QUICK, vary={"links.link.loss": [0.01, 0.02]}, seeds=3)
    axes = records.plot()
    cells = records.cells()
    (line,) = axes.get_lines()[:1]
    assert list(line.get_xdata()) == [0.01, 0.02]
    assert list(line.get_ydata()) == cells.column("goodput_mbit_per_s.mean")
    assert axes.get_ylabel() == "goodput (Mbit/s)"
    assert axes.containers[0].has_yerr
    assert records.plot("time_s", x="links.link.loss", ax=axes) is axes
    with pytest.raises(midhop.Error, match="no figure is called `speed`"):
        records.plot("speed")
    with pytest.raises(midhop.Error, match="no axis is called `loss`"):
        records.plot(x="loss")


def test_a_quantity_is_drawn_over_time() -> None:
    record = midhop.run(QUICK)[0]
    axes = record.plot("cwnd")
    curve = next(curve for curve in record.curves if curve.quantity == "cwnd")
    assert list(axes.get_lines()[0].get_ydata()) == curve.value
    with pytest.raises(midhop.Error, match="no curve of `speed`"):
        record.plot("speed")
