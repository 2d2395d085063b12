//! Linux's interfaces for sockets and networks, without a policy.
//!
//! Each file has one interface. A caller brings the names, numbers and limits; what they are chosen by,
//! what is logged and what is counted is the caller's. What the kernel sends is read as if a stranger had sent it: no bytes
//! can make reading go past their end, and what is of another shape is skipped.

pub mod conntrack;
pub mod link;
pub mod netlink;
pub mod netns;
pub mod nfqueue;
pub mod nft;
pub mod route;
pub mod sock_diag;
pub mod sockopt;
pub mod tcp_info;
pub mod tproxy;
