//! Networks in virtual time: the engine, nodes, applications, runs.
