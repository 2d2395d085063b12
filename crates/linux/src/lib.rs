//! Linux's interfaces for sockets and networks, without any policy.
//!
//! Each file has one interface. The caller chooses the names, numbers and limits, and decides what is logged and
//! counted. Data from the kernel is parsed as if it came from a stranger: no input can make parsing read beyond its
//! end, and data of an unknown form is skipped.
//!
//! Decision 0042.

pub mod conntrack;
pub mod link;
pub mod netlink;
pub mod netns;
pub mod nfqueue;
pub mod nft;
pub mod receive_queue;
pub mod route;
pub mod route_table;
pub mod rule;
pub mod schedstat;
pub mod shared_pool;
pub mod shared_words;
pub mod sock_diag;
pub mod sockopt;
pub mod stream_position;
pub mod tcp_info;
pub mod tcp_repair;
pub mod tcp_state;
pub mod tproxy;
pub mod twin;
