//! The testbed: namespaces, links between them, the meter and the probe.

mod emulator;
mod meter;
mod meter_link;
mod meter_namespaces;
mod modems;
mod namespace;
mod probe;
