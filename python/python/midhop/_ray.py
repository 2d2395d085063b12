"""A sweep or a study on a cluster of Ray's.

The driver, this process, resolves the plans, sends them out in batches, and keeps each record as it
comes. A batch is as large as what its runs have cost so far makes it last about `BATCH_S`, and
smaller towards the end. No batch is needed for another: where a worker or a node dies, what it had
goes out again, to whoever is there.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from midhop._errors import Error

BATCH_S = 1.0
"""How long a batch is meant to last: long beside what it costs to send it, short beside a sweep."""
RUNS_MAX = 2000
"""How many runs a batch has at most, however short they are."""
DEATHS_MAX = 3
"""How many workers may die of one run before it counts as failed."""
LOOK_S = 0.5
"""How often the driver looks up while no batch ends."""
RESOURCES_S = 2.0
"""How often the driver counts the cluster's processors."""


class Work(Protocol):
    """Runs, and what there is of their records: those of a sweep, or of a study."""

    def left(self) -> list[int]:
        """Return the places of the runs that have no record yet."""

    def weights(self, places: Sequence[int]) -> list[int]:
        """Return what runs cost, only compared with each other."""

    def batch(self, places: Sequence[int]) -> bytes:
        """Return runs for a process that calls `run_batch`."""

    def accept(self, answer: bytes) -> None:
        """Keep what such a process answered."""

    def fail(self, places: Sequence[int], why: str) -> None:
        """Note why runs have no record."""


def run(
    work: Work,
    engine: str,
    jobs: int | None,
    watch: Callable[[int, int], object] | None,
) -> None:
    """Run what is left on a cluster."""
    if jobs is not None and jobs < 1:
        raise Error("`jobs` must be at least 1", code=64)
    left = work.left()
    if not left:
        return
    with connected(engine) as ray:
        Driver(ray, work, left, jobs, watch).run()


def run_here(batch: bytes) -> tuple[bytes, float]:
    """Run a batch in this process, a worker's, and return the answer and how long it took."""
    from midhop._native import run_batch

    began = time.perf_counter()
    answer = run_batch(batch)
    return answer, time.perf_counter() - began


@contextmanager
def connected(engine: str) -> Iterator[Any]:
    """Join the cluster that `engine` names; leave it as it was found."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise Error(
            "Ray is not installed, which runs sweeps and studies on a cluster",
            "pip install 'midhop[ray]', or leave the engine out: all processors here are used",
        ) from error
    joined = ray.is_initialized()
    if not joined:
        try:
            ray.init(
                address=None if engine == "ray" else engine,
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=True,
            )
        except (ConnectionError, TimeoutError, RuntimeError, ValueError) as error:
            raise Error(
                f"no cluster of Ray's answers at {engine}",
                "`ray start --head` starts one; ray://HOST:10001 names one elsewhere",
                [str(error)],
            ) from error
    try:
        yield ray
    finally:
        if not joined:
            ray.shutdown()


class Driver:
    """Sends batches out, and takes in what comes of them."""

    def __init__(
        self,
        ray: Any,
        work: Work,
        left: list[int],
        jobs: int | None,
        watch: Callable[[int, int], object] | None,
    ) -> None:
        self._ray = ray
        self._work = work
        self._jobs = jobs
        self._watch = watch
        weights = dict(zip(left, work.weights(left), strict=True))
        # The costliest begin first, so that none of them is what all wait for in the end. The order
        # keeps runs of one cell together, whose plan is sent once.
        self._queue = deque(sorted(left, key=lambda place: -weights[place]))
        self._weights = weights
        self._weight_left = sum(weights.values())
        self._again: deque[list[int]] = deque()
        self._deaths: dict[int, int] = {}
        self._out: dict[Any, list[int]] = {}
        self._whole = len(left)
        self._done = 0
        self._spent_s = 0.0
        self._spent_weight = 0
        self._slots = 0
        self._counted_at = float("-inf")
        # A batch that is lost is sent again from here: Ray would send all of it once more.
        self._task = ray.remote(num_cpus=1, max_retries=0)(run_here)

    def run(self) -> None:
        """Run everything, or raise what a batch raises."""
        try:
            while self._queue or self._again or self._out:
                self._fill()
                ready, _ = self._ray.wait(list(self._out), num_returns=1, timeout=LOOK_S)
                for reference in ready:
                    self._take(reference, self._out.pop(reference))
        finally:
            for reference in self._out:
                self._ray.cancel(reference, force=False)
            self._out.clear()

    def _fill(self) -> None:
        """Send out as many batches as there are processors, and one more for each of two."""
        now = time.monotonic()
        if now - self._counted_at > RESOURCES_S:
            self._slots = max(1, int(self._ray.cluster_resources().get("CPU", 1)))
            self._counted_at = now
        most = self._slots + max(1, self._slots // 2)
        if self._jobs is not None:
            most = min(most, self._jobs)
        while len(self._out) < most and (self._again or self._queue):
            places = self._again.popleft() if self._again else self._next()
            self._out[self._task.remote(self._work.batch(places))] = places

    def _next(self) -> list[int]:
        """Take the next batch off the queue."""
        room: float = 0.0
        if self._spent_weight:
            share = self._weight_left / (2 * self._slots)
            room = min(BATCH_S * self._spent_weight / max(self._spent_s, 1e-9), share)
        places = [self._queue.popleft()]
        weight = self._weights[places[0]]
        while (
            self._queue
            and len(places) < RUNS_MAX
            and weight + self._weights[self._queue[0]] <= room
        ):
            places.append(self._queue.popleft())
            weight += self._weights[places[-1]]
        self._weight_left -= weight
        return places

    def _take(self, reference: Any, places: list[int]) -> None:
        """Keep what came of a batch, or send it out again."""
        exceptions = self._ray.exceptions
        try:
            answer, took_s = self._ray.get(reference)
        except exceptions.RayTaskError as error:
            raise raised(error) from error
        except exceptions.RayError as error:
            if "No module named" in str(error):
                raise absent(str(error)) from error
            self._lost(places, error)
            return
        self._work.accept(answer)
        self._spent_s += took_s
        self._spent_weight += sum(self._weights[place] for place in places)
        self._over(len(places))

    def _lost(self, places: list[int], error: Exception) -> None:
        """Send out again what a worker had that died; in halves, so that what kills is found."""
        # What is there may be less now.
        self._counted_at = float("-inf")
        if len(places) > 1:
            middle = len(places) // 2
            self._again.extend([places[:middle], places[middle:]])
            return
        deaths = self._deaths[places[0]] = self._deaths.get(places[0], 0) + 1
        if deaths < DEATHS_MAX:
            self._again.append(places)
            return
        self._work.fail(places, f"{deaths} workers died of it ({type(error).__name__})")
        self._over(1)

    def _over(self, runs: int) -> None:
        self._done += runs
        if self._watch is not None:
            self._watch(self._done, self._whole)


def raised(error: Any) -> Exception:
    """Return what a worker raised."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, Error):
        return cause
    if isinstance(cause, ModuleNotFoundError) or "No module named" in str(error):
        return absent(str(error))
    return Error("a worker failed", None, [str(cause or error)])


def absent(why: str) -> Error:
    """Return the error for a node that lacks the package."""
    return Error(
        "a node of the cluster has not the package midhop",
        "install the same wheel on every node, or name it in the runtime_env of ray.init",
        [why.strip().splitlines()[-1]],
    )
