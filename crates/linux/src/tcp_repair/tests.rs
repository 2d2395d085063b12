//! Connections that move between two network namespaces while a third has their far end.

mod stage;

mod ends;
mod moves;
mod refusals;
