"""What was measured without a scenario: by `midhop meter`, or by iperf3."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from midhop import _native
from midhop._errors import Error
from midhop._native import Record
from midhop._records import Records
from midhop._run import Scenario
from midhop._run import source as source_of


@dataclass(frozen=True, slots=True)
class LinkDirection:
    """What was found of one direction of a link."""

    rate_bit_per_s: float
    """What the link carries, headers of IP and UDP included, packets that it loses behind its
    bottleneck too."""
    rate_packets: int
    """Packets of 1250 bytes that arrived of the train by which it was judged."""
    rate_at_least_because: str | None
    """Why the link may be faster than that; none where it was the bottleneck."""
    rate_p10_bit_per_s: float | None
    """The 10th percentile of the rate that arrived over windows of 0.2 s; none where packets were
    too few."""
    rate_p50_bit_per_s: float | None
    """The median of it."""
    rate_p90_bit_per_s: float | None
    """The 90th percentile of it."""
    delay_variation_median_s: float
    """How much longer than the fastest a ping took this way: the median."""
    delay_variation_p95_s: float
    """The 95th percentile of it."""
    loss_at_bit_per_s: float | None
    """The rate at which losses were counted; none where there was no time to."""
    packets_sent: int
    """Packets sent at that rate."""
    packets_lost: int
    """Those that never arrived."""
    loss_ratio: float
    """Lost of sent."""
    loss_low_ratio: float
    """The lower end of its 95 % interval."""
    loss_high_ratio: float
    """The upper end of it."""
    loss_burst_mean_packets: float | None
    """Mean length of a run of lost packets; none where none was lost."""
    reordered_ratio: float
    """Packets that arrived behind one that was sent later, of those that arrived."""
    duplicate_ratio: float
    """Packets that arrived again, of those that arrived."""
    overflowed_packets: int
    """Packets that the receiving host had no room for, in all trains that count."""
    tcp_goodput_bit_per_s: float | None
    """Payload of one TCP flow; none where it was not tried or failed."""
    tcp_bytes: int | None
    """How much of it arrived."""
    tcp_took_s: float | None
    """In what time."""
    tcp_retransmissions: int | None
    """Segments that its sender sent again."""
    tcp_congestion: str | None
    """Its congestion control."""


@dataclass(frozen=True, slots=True)
class LinkReport:
    """What `midhop meter link` found of a link, under the keys of its JSON."""

    host: str
    """The far host, as it was given."""
    port: int
    """Its port."""
    took_s: float
    """How long all took."""
    time_s_max: float
    """How long it was allowed to take."""
    rtt_min_s: float
    """The smallest round trip of the link at rest."""
    rtt_median_s: float
    """The median of the round trips."""
    rtt_p95_s: float
    """Their 95th percentile."""
    pings: int
    """Pings sent."""
    pings_lost: int
    """Pings without an answer."""
    down: LinkDirection
    """Towards this host."""
    up: LinkDirection
    """Away from this host."""
    warnings: list[str]
    """What the numbers do not show, in sentences."""
    toml: str
    """The leg for midhopd, and the link for a scenario, as the program prints them."""

    @classmethod
    def _of(cls, text: str, toml: str) -> LinkReport:
        keys: dict[str, Any] = json.loads(text)
        down, up = (LinkDirection(**keys.pop(way)) for way in ("down", "up"))
        return cls(**keys, down=down, up=up, toml=toml)


class Measured:
    """One measurement."""

    name: str
    """What errors call it: its path, or `<text>`, or `<dict>`."""
    program: str
    """What measured it: `midhop meter run`, `midhop meter link` or `iperf3`."""
    warnings: list[str]
    """What its numbers do not show, in sentences."""
    record: Record
    """It as a record, with its transfers, its flows, and what was sampled over time."""
    link: LinkReport | None
    """What `midhop meter link` found; None of the others."""

    def __init__(self, name: str, text: str) -> None:
        found = _native.Measurement(name, text)
        self.name = name
        self.program = found.program
        self.warnings = found.warnings
        self.record = found.record
        self.link = None
        self._text = text
        if found.link_json is not None and found.link_toml is not None:
            self.link = LinkReport._of(found.link_json, found.link_toml)

    def records(self) -> Records:
        """Return it as records, which have tables and pictures."""
        return Records([self.record])

    def to_dict(self) -> dict[str, Any]:
        """Return what the program printed, as dictionaries and lists."""
        whole: dict[str, Any] = json.loads(self._text)
        return whole

    def __repr__(self) -> str:
        return f"Measured({self.record.title!r}, by {self.program})"

    def __reduce__(self) -> tuple[type[Measured], tuple[str, str]]:
        return Measured, (self.name, self._text)


def measured(source: str | os.PathLike[str] | Mapping[str, Any]) -> Measured:
    """Read what was measured without a scenario.

    Args:
        source: What `midhop meter run --json`, `midhop meter link --json` or `iperf3 --json`
            printed: a path, the text itself, or a dictionary that was read from it.

    Raises:
        Error: In the words of the program's `report`, when it cannot be read, is something else,
            or is of a test that failed.

    """
    if isinstance(source, Mapping):
        return Measured("<dict>", written(source))
    if isinstance(source, str) and source.lstrip().startswith("{"):
        return Measured("<text>", source)
    return Measured(os.fspath(source), _native.text_of(source))


def limited(records: Records, limit: Scenario | Measured) -> Records:
    """Return records beside what a scenario or a measured link allows."""
    if isinstance(limit, Measured):
        given = _native.Source.named(limit.name, limit._text)
    elif isinstance(limit, Mapping) and "pings" in limit:
        given = _native.Source.named("<dict>", written(limit))
    else:
        given = source_of(limit)
    return Records(_native.limited(list(records), given))


def written(table: Mapping[str, Any]) -> str:
    """Return a dictionary as JSON."""
    try:
        return json.dumps(dict(table), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise Error("the dictionary is no JSON", None, [str(error)], 64) from error
