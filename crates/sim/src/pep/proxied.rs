//! The flows of a proxy, of any kind.

use super::chain_flow::ChainFlow;
use super::flow::SplitFlow;
use super::relay::Leg;
use super::tunnel_flow::TunnelFlow;

/// A flow of a proxy.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a box holds it")]
pub(super) enum ProxiedFlow {
    /// Between two connections.
    Split(SplitFlow),
    /// Between a connection and a tunnel.
    Tunnelled(TunnelFlow),
    /// Between two tunnels.
    Chained(ChainFlow),
}

/// Common fields of all kinds.
macro_rules! either {
    ($flow:expr, $own:ident => $do:expr) => {
        match $flow {
            ProxiedFlow::Split($own) => $do,
            ProxiedFlow::Tunnelled($own) => $do,
            ProxiedFlow::Chained($own) => $do,
        }
    };
}

pub(super) use either;

impl ProxiedFlow {
    pub fn connected(&self) -> impl Iterator<Item = &Leg> {
        let (two, one) = match self {
            Self::Split(flow) => (Some(flow.connected()), None),
            Self::Tunnelled(flow) => (None, flow.connected()),
            Self::Chained(_) => (None, None),
        };
        two.into_iter().flatten().chain(one)
    }

    /// Whether it uses the tunnel at `tunnel`.
    pub fn is_by(&self, tunnel: usize) -> bool {
        match self {
            Self::Split(_) => false,
            Self::Tunnelled(flow) => flow.is_by(tunnel),
            Self::Chained(flow) => flow.is_by(tunnel),
        }
    }
}
