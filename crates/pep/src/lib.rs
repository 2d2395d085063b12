//! What a proxy decides: configuration, policy rules, admission and credit, without any I/O.
