"""What a cluster of Ray's costs, beside the same sweep on this machine's processors alone.

Usage: python bench/engine.py [--pairs N] [--ray-only] [--out DIR] RUNS:SECONDS…

Each argument is a sweep: so many runs, of about so many seconds each. Both engines run it in turn
on the same processors, with workers that are there already; the table has the median of each, the
driver's own processor time, its largest memory in the sweeps with Ray, and what the object store
held at most. `--ray-only` leaves out the sweeps without Ray, for those that take long, as in

    python bench/engine.py --ray-only --pairs 1 100000:0.01

`--out` has each sweep keep its records in a directory of its own below DIR, as people do.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import midhop
import ray

SCENARIO = {
    "title": "What an engine costs",
    "duration": "1000 s",
    "nodes": {"client": {}, "server": {}},
    "links": {
        "link": {
            "between": ["client", "server"],
            "rate": "100 Mbit/s",
            "delay": "10 ms",
            "loss": 0.0001,
        }
    },
    "transfers": {"file": {"from": "server", "to": "client", "bytes": "1 MB"}},
}


def calibrated(seconds: float) -> int:
    """Return how many bytes a run moves that takes so long here."""
    size = 1_000_000
    while True:
        took = min(timed(lambda size=size: runs(size, 1, None)) for _ in range(3))  # type: ignore[misc]
        if took > seconds / 2:
            return int(size * seconds / took)
        size *= 2


def runs(
    size: int,
    count: int,
    engine: str | None,
    watch: object = False,
    out: Path | None = None,
) -> midhop.Records:
    """Run a sweep of so many runs, which each move so many bytes."""
    per_cell = min(count, 1000)
    return midhop.sweep(
        SCENARIO,
        set={"transfers.file.bytes": f"{size} B"},
        vary={"links.link.loss": [0.0001 + at * 1e-8 for at in range(max(1, count // per_cell))]},
        seeds=per_cell,
        engine=engine,
        out=out,
        progress=watch,  # type: ignore[arg-type]
    )


def timed(call: Callable[[], object]) -> float:
    """Return how long a call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


class Peaks:
    """What the driver and the object store hold at most."""

    def __init__(self) -> None:
        self.whole = ray.cluster_resources()["object_store_memory"]
        self.store = 0.0
        self.driver_before = resident("VmRSS")
        self._at = 0.0
        # From here on the kernel counts the largest memory of this process anew.
        Path("/proc/self/clear_refs").write_text("5")

    def look(self, done: int, whole: int) -> None:
        """Look at the object store, a few times in a second."""
        if time.monotonic() - self._at > 0.2:
            self._at = time.monotonic()
            left = ray.available_resources().get("object_store_memory", self.whole)
            self.store = max(self.store, self.whole - left)

    def driver(self) -> float:
        """Return the driver's largest memory since the beginning, in bytes."""
        return resident("VmHWM")


def resident(name: str) -> float:
    """Return a size of this process, in bytes, by its name in /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def measured(given: argparse.Namespace, count: int, seconds: float) -> str:
    """Run a sweep with both engines, and return its row of the table."""
    processors = os.cpu_count() or 1
    size = calibrated(seconds)
    here, there, driver, ratios, peaks, before = [], [], [], [], [], []
    store = 0.0
    for turn in range(given.pairs):
        if not given.ray_only:
            here.append(timed(lambda: runs(size, count, None)))
        out = None if given.out is None else given.out / f"{count}-{seconds}-{turn}"
        watch = Peaks()
        began = time.process_time()
        there.append(timed(lambda: runs(size, count, "ray", watch.look, out)))  # noqa: B023
        driver.append(time.process_time() - began)
        peaks.append(watch.driver())
        before.append(watch.driver_before)
        store = max(store, watch.store)
        ratios.extend(there[-1] / it for it in here[-1:])
    whole = statistics.median(here or there)
    without = f"{whole:.1f} s | " if here else "– | "
    more = f"{100 * (statistics.median(ratios) - 1):+.1f} %" if ratios else "–"
    return (
        f"| {count:,} | {1000 * whole * processors / count:.1f} ms "
        f"| {without}{statistics.median(there):.1f} s | {more} "
        f"| {statistics.median(driver):.1f} s "
        f"| {max(before) / 1e6:.0f} MB | {max(peaks) / 1e6:.0f} MB "
        f"| {store / 1e6:.1f} MB | {os.getloadavg()[0]:.1f} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--ray-only", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("sweeps", nargs="+", metavar="RUNS:SECONDS")
    given = parser.parse_args()
    processors = os.cpu_count() or 1
    ray.init(num_cpus=processors, log_to_driver=False, include_dashboard=False)
    runs(1_000_000, 50 * processors, "ray")
    print(f"{processors} processors; load before {os.getloadavg()[0]:.1f}")
    print(
        "| runs | of | here | Ray | more | driver | driver's memory before | at most "
        "| object store at most | load |"
    )
    print("|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for sweep in given.sweeps:
        count, seconds = sweep.split(":")
        print(measured(given, int(count), float(seconds)), flush=True)


if __name__ == "__main__":
    main()
