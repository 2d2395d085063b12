//! Checks of handovers: links lead to their nodes, and moments can follow each other.

use super::{HandoverPlan, HandoverSpec, LiveFlows, StateWay, Timeline};
use crate::pep::PepPlan;
use crate::spec::{NO_PEP, Spec};
use midhop_config::{ConfigError, Document, KeyPath, suggest};
use midhop_units::{Bytes, Duration, Rate};
use std::collections::BTreeMap;

/// Most entries.
const HANDOVERS_MAX: usize = 250;
/// Most moments of a run.
const MOMENTS_MAX: usize = 10_000;
/// The shortest interval of a repeated handover.
const EVERY_MIN: Duration = Duration::from_ms(100);
/// The longest outage, drain, and delay of a path of state.
const TIME_MAX: Duration = Duration::from_s(3600);
const DRAIN: Duration = Duration::from_s(30);
const STATE: Bytes = Bytes::new(1000);
const STATE_MAX: Bytes = Bytes::new(1_000_000);

/// Resolves the handovers of `spec`, whose running proxies are `peps`.
///
/// # Errors
/// At the first that cannot take place.
pub(crate) fn resolve(
    spec: &Spec,
    peps: &BTreeMap<String, PepPlan>,
    document: &Document,
) -> Result<Vec<HandoverPlan>, ConfigError> {
    if spec.handovers.len() > HANDOVERS_MAX {
        let path = KeyPath::of(["handovers"]);
        let message = format!("{} handovers are too many", spec.handovers.len());
        let hint = format!("at most {HANDOVERS_MAX}; `every` repeats one");
        return Err(document.fault(&path, message, Some(hint)));
    }
    let mut plans = Vec::new();
    for (number, handover) in spec.handovers.iter().enumerate() {
        let path = KeyPath::of(["handovers".to_owned(), number.to_string()]);
        plans.push(One { spec, peps, document, path, handover }.resolve()?);
    }
    in_order(spec, &plans, document)?;
    Ok(plans)
}

/// One handover, and the data for its checks.
struct One<'s> {
    spec: &'s Spec,
    peps: &'s BTreeMap<String, PepPlan>,
    document: &'s Document,
    path: KeyPath,
    handover: &'s HandoverSpec,
}

impl One<'_> {
    fn refuse<T>(
        &self,
        key: &str,
        message: impl Into<String>,
        hint: impl Into<Option<String>>,
    ) -> Result<T, ConfigError> {
        Err(self.document.fault(&self.path.join(key), message, hint.into()))
    }

    fn resolve(&self) -> Result<HandoverPlan, ConfigError> {
        let HandoverSpec { at, every, from, to, leaves, takes, flows, .. } = self.handover;
        self.nodes()?;
        self.times()?;
        let host = self.link_to("leaves", leaves, from)?;
        let other = self.link_to("takes", takes, to)?;
        if host != other {
            let message = format!("`{takes}` leads to `{to}` from `{other}`, not from `{host}`");
            let hint = format!("`{leaves}` is a link of `{host}`: name another link of it");
            return self.refuse("takes", message, hint);
        }
        self.proxies()?;
        let over = self.over()?;
        let state = self.handover.state.unwrap_or(STATE);
        if state > STATE_MAX {
            let message = format!("a flow whose state takes {state} is impossible");
            return self.refuse("state", message, format!("at most {STATE_MAX}"));
        }
        Ok(HandoverPlan {
            at: *at,
            every: *every,
            from: from.clone(),
            to: to.clone(),
            leaves: leaves.clone(),
            takes: takes.clone(),
            announced: self.handover.announced.unwrap_or(Duration::ZERO),
            flows: *flows,
            over,
            outage: self.handover.outage.unwrap_or(Duration::ZERO),
            drain: self.handover.drain.unwrap_or(DRAIN),
            state,
        })
    }

    fn nodes(&self) -> Result<(), ConfigError> {
        let HandoverSpec { from, to, .. } = self.handover;
        for (key, node) in [("from", from), ("to", to)] {
            if !self.spec.nodes.contains_key(node) {
                let hint = suggest::hint(node, "nodes", self.spec.nodes.keys());
                return self.refuse(key, format!("no node is called `{node}`"), hint);
            }
        }
        if from == to {
            let hint = "another node takes over".to_owned();
            return self.refuse("to", "a node cannot hand over to itself", hint);
        }
        Ok(())
    }

    fn times(&self) -> Result<(), ConfigError> {
        let HandoverSpec { at, every, announced, outage, drain, .. } = self.handover;
        if at.is_zero() {
            let hint = "a run begins with the link that is left: give it some time".to_owned();
            return self.refuse("at", "nothing can be handed over at the very start", hint);
        }
        if *at >= self.spec.duration {
            let message = format!("the run ends after {} already", self.spec.duration);
            return self.refuse("at", message, "raise `duration`, or do it sooner".to_owned());
        }
        if let Some(every) = every.filter(|every| *every < EVERY_MIN) {
            let message = format!("{every} is too short a period of handovers");
            return self.refuse("every", message, format!("at least {EVERY_MIN}"));
        }
        if announced.is_some_and(|announced| announced > *at) {
            let message = "it would be announced before the run begins";
            return self.refuse("announced", message, format!("at most {at}"));
        }
        for (key, time) in [("announced", announced), ("outage", outage), ("drain", drain)] {
            let shorter = every.unwrap_or(TIME_MAX).min(TIME_MAX);
            let most = if key == "drain" { TIME_MAX } else { shorter };
            if let Some(time) = time.filter(|time| *time > most) {
                return self.refuse(key, format!("{time} is too long"), format!("at most {most}"));
            }
        }
        Ok(())
    }

    /// The host from which `link` leads to `node`.
    fn link_to(&self, key: &str, link: &str, node: &str) -> Result<&str, ConfigError> {
        let Some(known) = self.spec.links.get(link) else {
            let hint = suggest::hint(link, "links", self.spec.links.keys());
            return self.refuse(key, format!("no link is called `{link}`"), hint);
        };
        match &known.between {
            [one, host] | [host, one] if one == node => Ok(host),
            [one, other] => {
                let joins =
                    |it: &&String| self.spec.links[*it].between.iter().any(|end| end == node);
                let links: Vec<&String> = self.spec.links.keys().filter(joins).collect();
                let message =
                    format!("`{link}` joins `{one}` and `{other}`, and does not lead to `{node}`");
                self.refuse(key, message, suggest::hint(link, "its links", links))
            }
        }
    }

    fn has_proxy(&self, node: &str) -> Option<&str> {
        let pep = self.spec.nodes.get(node)?.pep.as_deref();
        pep.filter(|pep| *pep != NO_PEP)
    }

    fn proxies(&self) -> Result<(), ConfigError> {
        let HandoverSpec { from, to, flows, .. } = self.handover;
        let Some(pep) = self.has_proxy(from) else { return Ok(()) };
        if *flows == LiveFlows::Moved && self.has_proxy(to).is_none() {
            let message = format!("the flows of `{from}` cannot move: `{to}` has no proxy");
            let hint = format!("give it one (nodes.{to}.pep), or reset or anchor them");
            return self.refuse("flows", message, hint);
        }
        let tunnels = |node: &str| {
            let pep = self.has_proxy(node).and_then(|pep| self.peps.get(pep));
            pep.is_some_and(|pep| !pep.config().peers.is_empty())
        };
        if *flows != LiveFlows::Anchored && (tunnels(from) || tunnels(to)) {
            let message =
                format!("flows of tunnels cannot be {}, and `{pep}` has peers", flows.name());
            let hint = "flows = \"anchored\", or proxies that only split".to_owned();
            return self.refuse("flows", message, hint);
        }
        Ok(())
    }

    /// The path of state between the two nodes.
    fn over(&self) -> Result<Option<StateWay>, ConfigError> {
        let HandoverSpec { from, to, flows, over, .. } = self.handover;
        let joins = |name: &str| {
            let between = self.spec.links.get(name).map(|link| &link.between);
            between.is_some_and(|ends| ends.contains(from) && ends.contains(to))
        };
        let joining = || self.spec.links.keys().filter(|name| joins(name)).collect::<Vec<_>>();
        match over {
            Some(StateWay::Link(name)) if !self.spec.links.contains_key(name) => {
                let hint = suggest::hint(name, "links", self.spec.links.keys());
                return self.refuse("over", format!("no link is called `{name}`"), hint);
            }
            Some(StateWay::Link(name)) if !joins(name) => {
                let message = format!("`{name}` does not join `{from}` and `{to}`");
                let hint = suggest::hint(name, "links between them", joining());
                let other = "a way of its own is a table { rate = …, delay = … }".to_owned();
                return self.refuse("over", message, hint.or(Some(other)));
            }
            Some(StateWay::Own(own)) if own.rate == Rate::ZERO || own.delay > TIME_MAX => {
                return self.refuse("over", "state would never arrive", None);
            }
            Some(way) if way.link().is_some() => return Ok(over.clone()),
            Some(_) if matches!(flows, LiveFlows::Moved | LiveFlows::Reset) => {
                return Ok(over.clone());
            }
            _ => {}
        }
        let links = joining();
        let needed = *flows != LiveFlows::Reset && self.has_proxy(from).is_some();
        match links[..] {
            [only] => Ok(Some(StateWay::Link(only.clone()))),
            _ if !needed => Ok(None),
            [] if *flows == LiveFlows::Moved => {
                let message = format!("no link joins `{from}` and `{to}`, for the state of flows");
                let hint = "name a way for it: over = { rate = …, delay = … }".to_owned();
                self.refuse("over", message, hint)
            }
            [] => {
                let message = format!("no link joins `{from}` and `{to}`, for packets of flows");
                let hint = format!("add one; {} flows need it", flows.name());
                self.refuse("over", message, hint)
            }
            _ => {
                let message = format!("several links join `{from}` and `{to}`");
                let hint = suggest::hint("", "name one of them", links);
                self.refuse("over", message, hint)
            }
        }
    }
}

/// Checks that at each moment the link that is left is in use, and the one that is taken is not.
fn in_order(spec: &Spec, plans: &[HandoverPlan], document: &Document) -> Result<(), ConfigError> {
    let path = |number: usize| KeyPath::of(["handovers".to_owned(), number.to_string()]);
    let timeline = Timeline::new(plans, spec.duration);
    let moments = timeline.moments();
    if moments.len() > MOMENTS_MAX {
        let message = format!("{} handovers in a run are too many", moments.len());
        let hint = format!("at most {MOMENTS_MAX}: raise `every`");
        return Err(document.fault(&path(moments[0].handover).join("every"), message, Some(hint)));
    }
    let mut unused = timeline.unused_first();
    for moment in moments {
        let handover = timeline.handover(*moment);
        let path = path(moment.handover);
        if unused.contains(handover.leaves.as_str()) {
            let message = format!("`{}` is not in use at {}", handover.leaves, moment.at);
            let hint = "a handover must take a link before another can leave it".to_owned();
            return Err(document.fault(&path.join("leaves"), message, Some(hint)));
        }
        if !unused.contains(handover.takes.as_str()) {
            let message = format!("`{}` is in use already at {}", handover.takes, moment.at);
            let hint = "a link is free to be taken before its first use, or after it was left";
            return Err(document.fault(&path.join("takes"), message, Some(hint.to_owned())));
        }
        unused.insert(&handover.leaves);
        unused.remove(handover.takes.as_str());
    }
    Ok(())
}
