//! Flows that move to another machine, where another daemon goes on with them (decision 0065).
//!
//! At the old place, the mover ([`mover`]) asks flows to stand still ([`halt`]). Each flow's own task then freezes it and
//! takes its state out of the kernel ([`leave`]), and waits with the sockets. The mover offers the states to the peer by a stream of
//! their tunnel ([`exchange`]). There they are judged and restored ([`arrive`]), and go on when the old place says so ([`host`]).
//! Packets that come for them before wait there ([`waiting`]), and what a connection had not acknowledged is acknowledged
//! ([`acknowledge`]).
//! What takes privileges is the keeper's ([`privilege`]).
//!
//! Invariant: a flow is relayed at one place, or reset. Until the mover sends the commit, the old place goes on with it
//! whatever happens; after that, only if the new place has answered that it has discarded it.

pub mod acknowledge;
pub mod arrive;
pub mod copy;
pub mod exchange;
pub mod halt;
pub mod host;
pub mod leave;
pub mod mover;
pub mod order;
pub mod privilege;
pub mod waiting;
