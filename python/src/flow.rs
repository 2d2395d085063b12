//! The parts of a record: transfers, their flows, links, curves. Numbers carry their unit in their name.

use midhop_experiment::record::{FlowResult, LinkResult, Series, TransferResult};
use midhop_units::Duration;
use pyo3::prelude::*;
use std::collections::BTreeMap;

/// One transfer of a run: all its flows together.
#[pyclass(frozen, module = "midhop._native")]
#[derive(Clone)]
pub struct Transfer(pub TransferResult);

#[pymethods]
impl Transfer {
    /// Its name in the scenario.
    #[getter]
    fn name(&self) -> &str {
        &self.0.name
    }

    /// Whether everything asked for arrived before the run's end.
    #[getter]
    fn complete(&self) -> bool {
        self.0.complete
    }

    /// Payload that arrived.
    #[getter]
    fn bytes(&self) -> u64 {
        self.0.bytes.get()
    }

    /// From the first SYN to the last byte.
    #[getter]
    fn time_s(&self) -> f64 {
        self.0.took.as_s_f64()
    }

    /// Payload over that time, all flows together.
    #[getter]
    fn goodput_mbit_per_s(&self) -> f64 {
        self.0.goodput.mbit_per_s()
    }

    /// The shortest time that physics allows over the time it took; None without a limit.
    #[getter]
    fn efficiency(&self) -> Option<f64> {
        self.0.limit.as_ref().map(|it| it.efficiency)
    }

    /// The largest goodput that the path allows.
    #[getter]
    fn limit_goodput_mbit_per_s(&self) -> Option<f64> {
        self.0.limit.as_ref().map(|it| it.goodput.mbit_per_s())
    }

    /// The shortest time that the path allows.
    #[getter]
    fn limit_time_s(&self) -> Option<f64> {
        self.0.limit.as_ref().map(|it| it.time.as_s_f64())
    }

    /// Segments that its sender sent again. Behind a proxy: on its own leg only.
    #[getter]
    fn retransmissions(&self) -> u64 {
        self.0.flows.iter().map(|flow| flow.retransmissions).sum()
    }

    /// One for each connection.
    #[getter]
    fn flows(&self) -> Vec<Flow> {
        self.0.flows.iter().cloned().map(Flow).collect()
    }

    fn __repr__(&self) -> String {
        let Self(it) = self;
        let (goodput, time) = (it.goodput.mbit_per_s(), it.took.as_s_f64());
        let state = if it.complete { "" } else { ", incomplete" };
        format!("Transfer({}: {goodput:.3} Mbit/s, {time:.3} s{state})", it.name)
    }
}

/// One TCP connection, as its ends saw it.
#[pyclass(frozen, module = "midhop._native")]
#[derive(Clone)]
pub struct Flow(FlowResult);

#[pymethods]
impl Flow {
    /// Its number in its transfer, from 0.
    #[getter]
    fn id(&self) -> u32 {
        self.0.id
    }

    /// When its SYN left, after the run's start.
    #[getter]
    fn start_s(&self) -> f64 {
        self.0.start.as_s_f64()
    }

    /// When its last byte arrived, after the run's start.
    #[getter]
    fn end_s(&self) -> f64 {
        self.0.end.as_s_f64()
    }

    /// Payload that arrived.
    #[getter]
    fn bytes(&self) -> u64 {
        self.0.bytes.get()
    }

    /// Payload over time.
    #[getter]
    fn goodput_mbit_per_s(&self) -> f64 {
        self.0.goodput.mbit_per_s()
    }

    /// Segments that its sender sent again.
    #[getter]
    fn retransmissions(&self) -> u64 {
        self.0.retransmissions
    }

    /// Smallest round trip that its sender saw.
    #[getter]
    fn rtt_min_s(&self) -> Option<f64> {
        self.0.rtt_min.map(Duration::as_s_f64)
    }

    /// Its sender's congestion control.
    #[getter]
    fn congestion(&self) -> &str {
        &self.0.congestion
    }

    /// What ended it early, if something did.
    #[getter]
    fn error(&self) -> Option<&str> {
        self.0.error.as_deref()
    }

    fn __repr__(&self) -> String {
        let Self(it) = self;
        format!("Flow({}: {:.3} Mbit/s, {})", it.id, it.goodput.mbit_per_s(), it.congestion)
    }
}

/// One direction of a link over a whole run.
#[pyclass(frozen, module = "midhop._native")]
#[derive(Clone)]
pub struct Link(pub LinkResult);

#[pymethods]
impl Link {
    /// Its name in the scenario.
    #[getter]
    fn name(&self) -> &str {
        &self.0.name
    }

    /// `down`, towards the first node of `between`, or `up`.
    #[getter]
    fn direction(&self) -> &str {
        &self.0.direction
    }

    /// Packets handed to it.
    #[getter]
    fn packets_in(&self) -> u64 {
        self.0.packets_in
    }

    /// Bytes handed to it.
    #[getter]
    fn bytes_in(&self) -> u64 {
        self.0.bytes_in
    }

    /// Packets that came out.
    #[getter]
    fn packets_out(&self) -> u64 {
        self.0.packets_out
    }

    /// Bytes that came out.
    #[getter]
    fn bytes_out(&self) -> u64 {
        self.0.bytes_out
    }

    /// Packets that did not come out, by cause.
    #[getter]
    fn drops(&self) -> BTreeMap<String, u64> {
        self.0.drops.clone()
    }

    /// Packets that AQM marked instead of dropping them.
    #[getter]
    fn marks(&self) -> u64 {
        self.0.marks
    }

    /// Largest queue seen.
    #[getter]
    fn queue_bytes_max(&self) -> u64 {
        self.0.queue_bytes_max
    }

    fn __repr__(&self) -> String {
        let Self(it) = self;
        let lost: u64 = it.drops.values().sum();
        format!("Link({} {}: {} packets in, {lost} dropped)", it.name, it.direction, it.packets_in)
    }
}

/// One quantity over time.
#[pyclass(frozen, module = "midhop._native")]
#[derive(Clone)]
pub struct Curve(pub Series);

#[pymethods]
impl Curve {
    /// What was sampled: `goodput`, `cwnd`, `rtt`, `queue`, …
    #[getter]
    fn quantity(&self) -> &str {
        &self.0.quantity
    }

    /// Where: a transfer's name, a link's, or a proxy leg's.
    #[getter]
    fn place(&self) -> &str {
        &self.0.place
    }

    /// The flow it belongs to; None where it is of all flows together.
    #[getter]
    fn flow(&self) -> Option<u32> {
        self.0.flow
    }

    /// Unit of the values.
    #[getter]
    fn unit(&self) -> &str {
        &self.0.unit
    }

    /// When, after the run's start.
    #[getter]
    fn time_s(&self) -> Vec<f64> {
        self.0.time_s.clone()
    }

    /// What.
    #[getter]
    fn value(&self) -> Vec<f64> {
        self.0.value.clone()
    }

    fn __len__(&self) -> usize {
        self.0.value.len()
    }

    fn __repr__(&self) -> String {
        let Self(it) = self;
        format!("Curve({} of {}, {}: {} samples)", it.quantity, it.place, it.unit, it.value.len())
    }
}
