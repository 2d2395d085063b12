"""What a cluster of Ray's costs, beside the same sweep on this machine's processors alone.

Usage: python bench/engine.py [--pairs N] RUNS:SECONDS…

Each argument is a sweep: so many runs, of about so many seconds each. Both engines run it in turn
on the same processors, with workers that are there already; the table has the median of each, the
driver's own processor time and memory, and what the object store held at most.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import time
from collections.abc import Callable

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


def runs(size: int, count: int, engine: str | None, watch: object = False) -> midhop.Records:
    """Run a sweep of so many runs, which each move so many bytes."""
    per_cell = min(count, 1000)
    return midhop.sweep(
        SCENARIO,
        set={"transfers.file.bytes": f"{size} B"},
        vary={"links.link.loss": [0.0001 + at * 1e-8 for at in range(max(1, count // per_cell))]},
        seeds=per_cell,
        engine=engine,
        progress=watch,  # type: ignore[arg-type]
    )


def timed(call: Callable[[], object]) -> float:
    """Return how long a call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


class Store:
    """What the object store holds at most."""

    def __init__(self) -> None:
        self.whole = ray.cluster_resources()["object_store_memory"]
        self.most = 0.0
        self._at = 0.0

    def look(self, done: int, whole: int) -> None:
        """Look once a second."""
        if time.monotonic() - self._at > 1:
            self._at = time.monotonic()
            left = ray.available_resources().get("object_store_memory", self.whole)
            self.most = max(self.most, self.whole - left)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("sweeps", nargs="+", metavar="RUNS:SECONDS")
    given = parser.parse_args()
    processors = os.cpu_count() or 1
    ray.init(num_cpus=processors, log_to_driver=False, include_dashboard=False)
    runs(1_000_000, 50 * processors, "ray")
    print(f"{processors} processors; load before {os.getloadavg()[0]:.1f}")
    print("| runs | of | here | Ray | more | driver | driver's memory | object store | load |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for sweep in given.sweeps:
        count, seconds = int(sweep.split(":")[0]), float(sweep.split(":")[1])
        size = calibrated(seconds)
        here, there, driver, ratios = [], [], [], []
        store = Store()
        for _ in range(given.pairs):
            here.append(timed(lambda: runs(size, count, None)))  # noqa: B023
            began = time.process_time()
            there.append(timed(lambda: runs(size, count, "ray", store.look)))  # noqa: B023
            driver.append(time.process_time() - began)
            ratios.append(there[-1] / here[-1])
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"| {count:,} | {1000 * statistics.median(here) * processors / count:.1f} ms "
            f"| {statistics.median(here):.1f} s | {statistics.median(there):.1f} s "
            f"| {100 * (statistics.median(ratios) - 1):+.1f} % "
            f"| {statistics.median(driver):.1f} s | {memory:.0f} MB "
            f"| {store.most / 1e6:.1f} MB | {os.getloadavg()[0]:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
