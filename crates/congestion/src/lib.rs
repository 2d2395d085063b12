//! Congestion control as one trait, shared by simulator, tunnel and daemon.
