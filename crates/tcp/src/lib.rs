//! A sans-IO TCP: the endpoint, and the agents that stand on its path.
