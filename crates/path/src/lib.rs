//! Links of a network path as sans-IO state machines: rate, delay, loss, queues, access schemes.
