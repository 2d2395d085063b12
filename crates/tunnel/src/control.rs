//! The congestion control of midhop-congestion as a controller of QUIC.
