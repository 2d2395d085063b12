//! Checks of a scenario beyond its form: names exist, amounts are possible.

use crate::agents;
use crate::bounds::BYTES_MAX;
use crate::pep::PepPlan;
use crate::spec::{NO_PEP, Spec, TransferSpec};
use midhop_config::{ConfigError, Document, KeyPath, suggest};
use midhop_units::{Bytes, Duration};
use std::collections::BTreeMap;

const SEEDS_MAX: u32 = 10_000;
/// The most nodes, links or transfers of a scenario.
const NAMES_MAX: usize = 250;
const FLOWS_MAX: u32 = 10_000;
const RESTARTS_MAX: u32 = 1000;
const OBJECTS_MAX: usize = 10_000;
const DURATION_MAX: Duration = Duration::from_s(24 * 3600);
/// Names that the kernel reserves where interfaces are named.
const INTERFACES_TAKEN: [&str; 5] = ["lo", "all", "default", ".", ".."];
/// The kernel's limit (IFNAMSIZ without its final zero).
const INTERFACE_CHARS_MAX: usize = 15;
/// The kernel's limit (TCP_CA_NAME_MAX without its final zero).
const CONGESTION_CHARS_MAX: usize = 15;

/// Refuses a spec that has the right form but cannot be run, together with its proxies that run.
///
/// # Errors
/// At the first fault, with its place in `document`.
pub(crate) fn check(
    spec: &Spec,
    peps: &BTreeMap<String, PepPlan>,
    document: &Document,
) -> Result<(), ConfigError> {
    let checker = Checker { spec, document };
    checker.numbers()?;
    checker.nodes()?;
    checker.links()?;
    for (name, node) in &spec.nodes {
        if let Some((pep, plan)) = node.pep.as_ref().and_then(|pep| peps.get_key_value(pep)) {
            checker.interfaces(name, pep, plan)?;
        }
    }
    for (name, transfer) in &spec.transfers {
        checker.transfer(&KeyPath::of(["transfers", name.as_str()]), transfer)?;
    }
    for (name, traffic) in &spec.traffic {
        let path = KeyPath::of(["traffic", name.as_str()]);
        checker.node_exists(&path.join("from"), &traffic.from)?;
        checker.node_exists(&path.join("to"), &traffic.to)?;
        if let Some(congestion) = &traffic.congestion {
            checker.congestion(&path, &congestion.algorithm)?;
        }
    }
    agents::check(spec, document)?;
    checker.run()
}

struct Checker<'c> {
    spec: &'c Spec,
    document: &'c Document,
}

impl Checker<'_> {
    fn refuse<T>(
        &self,
        path: &KeyPath,
        message: impl Into<String>,
        hint: impl Into<Option<String>>,
    ) -> Result<T, ConfigError> {
        Err(self.document.fault(path, message, hint.into()))
    }

    fn numbers(&self) -> Result<(), ConfigError> {
        let Spec { duration, seeds, .. } = self.spec;
        if duration.is_zero() || *duration > DURATION_MAX {
            let path = KeyPath::of(["duration"]);
            let message = format!("a run of {duration} is impossible");
            return self.refuse(&path, message, format!("more than 0 s, at most {DURATION_MAX}"));
        }
        if !(1..=SEEDS_MAX).contains(seeds) {
            let path = KeyPath::of(["seeds"]);
            let message = format!("a cell cannot run {seeds} times");
            return self.refuse(&path, message, format!("1 to {SEEDS_MAX}"));
        }
        for (key, count) in [
            ("nodes", self.spec.nodes.len()),
            ("links", self.spec.links.len()),
            ("transfers", self.spec.transfers.len()),
            ("traffic", self.spec.traffic.len()),
            ("agents", self.spec.agents.len()),
            ("naive", self.spec.naive.len()),
        ] {
            if count > NAMES_MAX {
                let message = format!("{count} {key} are too many");
                return self.refuse(&KeyPath::of([key]), message, format!("at most {NAMES_MAX}"));
            }
        }
        Ok(())
    }

    fn nodes(&self) -> Result<(), ConfigError> {
        for (name, node) in &self.spec.nodes {
            let path = KeyPath::of(["nodes", name.as_str()]);
            let usable = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            if name.is_empty() || name.len() > 63 || !name.chars().all(usable) {
                let message = format!("`{name}` is no name for a node");
                let hint = "letters, digits, '-', '_' and '.', at most 63".to_owned();
                return self.refuse(&path, message, hint);
            }
            let undefined = |pep: &&str| {
                let Spec { peps, naive, .. } = self.spec;
                *pep != NO_PEP && !peps.contains_key(*pep) && !naive.contains_key(*pep)
            };
            if let Some(pep) = node.pep.as_deref().filter(undefined) {
                let defined = self.spec.peps.keys().chain(self.spec.naive.keys());
                let hint = suggest::hint(pep, "defined", defined)
                    .unwrap_or_else(|| format!("write a table [peps.{pep}]"));
                let message = format!("no proxy `{pep}` is defined");
                return self.refuse(&path.join("pep"), message, hint);
            }
        }
        for (table, taken) in [
            ("peps", self.spec.peps.contains_key(NO_PEP)),
            ("naive", self.spec.naive.contains_key(NO_PEP)),
        ] {
            if taken {
                let hint = "give it another name".to_owned();
                let path = KeyPath::of([table, NO_PEP]);
                return self.refuse(&path, format!("`{NO_PEP}` stands for no proxy at all"), hint);
            }
        }
        Ok(())
    }

    /// Checks that the interfaces in the table of `pep` are links of its node. The proxy checks the
    /// rest of the table.
    fn interfaces(&self, node: &str, pep: &str, plan: &PepPlan) -> Result<(), ConfigError> {
        let at = |name: &str| {
            self.spec.links.get(name).is_some_and(|link| link.between.iter().any(|end| end == node))
        };
        let refuse = |path: &KeyPath, name: &str| {
            let links = self.spec.links.keys().filter(|link| at(link)).collect::<Vec<_>>();
            let hint = suggest::hint(name, "its links", links);
            self.refuse(path, format!("no link of `{node}` is called `{name}`"), hint)
        };
        let path = KeyPath::of(["peps", pep]);
        let listed = path.join("intercept").join("interfaces");
        for (number, name) in plan.config().intercept.interfaces.iter().enumerate() {
            if !at(name) {
                let item = listed.join(number.to_string());
                // A single one may be written without a list.
                let is_list = self.document.get(&item).is_some();
                return refuse(if is_list { &item } else { &listed }, name);
            }
        }
        for (name, leg) in &plan.config().legs {
            let path = path.join("legs").join(name.as_str());
            match &leg.interface {
                Some(interface) if !at(interface) => {
                    return refuse(&path.join("interface"), interface);
                }
                None if leg.prefixes.is_empty() && !at(name) => return refuse(&path, name),
                _ => {}
            }
        }
        Ok(())
    }

    fn links(&self) -> Result<(), ConfigError> {
        for (name, link) in &self.spec.links {
            let path = KeyPath::of(["links", name.as_str()]);
            if let Some(reason) = unfit_interface(name) {
                let hint = format!(
                    "a link's name is its interface's: at most {INTERFACE_CHARS_MAX} letters, digits, \
                     '-', '_' and '.'"
                );
                return self.refuse(&path, format!("`{name}` {reason}"), hint);
            }
            let between = path.join("between");
            for (end, node) in link.between.iter().enumerate() {
                self.node_exists(&between.join(end.to_string()), node)?;
            }
            if link.between[0] == link.between[1] {
                let hint = "a link joins two different nodes".to_owned();
                return self.refuse(&between, "both ends are the same node", hint);
            }
        }
        Ok(())
    }

    fn node_exists(&self, path: &KeyPath, node: &str) -> Result<(), ConfigError> {
        if self.spec.nodes.contains_key(node) {
            return Ok(());
        }
        let hint = suggest::hint(node, "nodes", self.spec.nodes.keys());
        self.refuse(path, format!("no node is called `{node}`"), hint)
    }

    fn transfer(&self, path: &KeyPath, transfer: &TransferSpec) -> Result<(), ConfigError> {
        self.node_exists(&path.join("from"), &transfer.from)?;
        self.node_exists(&path.join("to"), &transfer.to)?;
        if transfer.from == transfer.to {
            let hint = "data goes from one node to another".to_owned();
            return self.refuse(&path.join("to"), "a node cannot send to itself", hint);
        }
        self.amount(path, transfer)?;
        self.shape(path, transfer)?;
        if let Some(congestion) = &transfer.congestion {
            self.congestion(path, &congestion.algorithm)?;
        }
        let sending = Duration::from_s_f64(transfer.seconds.unwrap_or(0.0));
        let end = transfer.start.saturating_add(sending);
        if transfer.start >= self.spec.duration || end > self.spec.duration {
            let key = if transfer.start >= self.spec.duration { "start" } else { "seconds" };
            let message = format!("the run ends after {} already", self.spec.duration);
            let hint = "raise `duration`, or reduce the transfer".to_owned();
            return self.refuse(&path.join(key), message, hint);
        }
        Ok(())
    }

    fn congestion(&self, path: &KeyPath, name: &str) -> Result<(), ConfigError> {
        let usable = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
        let length = 1..=CONGESTION_CHARS_MAX;
        if length.contains(&name.len()) && name.chars().all(usable) {
            return Ok(());
        }
        let message = format!("`{name}` is no name of a congestion control");
        let hint = "a name as the kernel gives it, such as cubic or bbr".to_owned();
        self.refuse(&path.join("congestion"), message, hint)
    }

    /// Checks the amount to send: given exactly once, and not zero.
    fn amount(&self, path: &KeyPath, transfer: &TransferSpec) -> Result<(), ConfigError> {
        let given: Vec<&str> = [
            transfer.objects.as_ref().map(|_| "objects"),
            transfer.bytes.map(|_| "bytes"),
            transfer.seconds.map(|_| "seconds"),
        ]
        .into_iter()
        .flatten()
        .collect();
        match given[..] {
            [_] => {}
            [] => {
                let hint = "add one of: objects = [\"50 kB\", …], bytes = \"5 MB\", seconds = 20";
                return self.refuse(path, "the amount to send is missing", hint.to_owned());
            }
            [first, second, ..] => {
                let message = format!("`{first}` and `{second}` exclude each other");
                return self.refuse(&path.join(second), message, "keep one of them".to_owned());
            }
        }
        if let Some(objects) = &transfer.objects {
            let path = path.join("objects");
            if objects.is_empty() || objects.len() > OBJECTS_MAX {
                let message = format!("a page of {} objects is impossible", objects.len());
                return self.refuse(&path, message, format!("1 to {OBJECTS_MAX} objects"));
            }
            if let Some(empty) = objects.iter().position(|&size| size == Bytes::ZERO) {
                let path = path.join(empty.to_string());
                return self.refuse(&path, "an object without a byte", None);
            }
            if let Some(large) = objects.iter().position(|&size| size > BYTES_MAX) {
                let message = format!("an object of {} is impossible", objects[large]);
                let hint = format!("at most {BYTES_MAX}");
                return self.refuse(&path.join(large.to_string()), message, hint);
            }
        }
        if transfer.bytes == Some(Bytes::ZERO) {
            return self.refuse(&path.join("bytes"), "nothing would be sent", None);
        }
        if let Some(bytes) = transfer.bytes.filter(|bytes| *bytes > BYTES_MAX) {
            let message = format!("a file of {bytes} is impossible");
            return self.refuse(&path.join("bytes"), message, format!("at most {BYTES_MAX}"));
        }
        if transfer.seconds.is_some_and(|seconds| !(seconds > 0.0 && seconds.is_finite())) {
            let message = "a transfer lasts longer than nothing";
            return self.refuse(&path.join("seconds"), message, "such as 20 or 0.5".to_owned());
        }
        Ok(())
    }

    /// Checks keys that belong to one kind of transfer only, and their ranges.
    fn shape(&self, path: &KeyPath, transfer: &TransferSpec) -> Result<(), ConfigError> {
        let page = transfer.objects.is_some();
        if page && transfer.flows.is_some() {
            let hint = "a page loads `parallel` objects at once".to_owned();
            return self.refuse(&path.join("flows"), "a page has no `flows`", hint);
        }
        for (key, given) in [
            ("parallel", transfer.parallel.is_some()),
            ("connections", transfer.connections.is_some()),
        ] {
            if !page && given {
                let hint = "bytes and seconds go over `flows` connections at once".to_owned();
                let message = format!("`{key}` is for pages of `objects`");
                return self.refuse(&path.join(key), message, hint);
            }
        }
        for (key, count) in [("flows", transfer.flows), ("parallel", transfer.parallel)] {
            if count.is_some_and(|count| !(1..=FLOWS_MAX).contains(&count)) {
                let message = format!("{} connections are impossible", count.unwrap_or_default());
                return self.refuse(&path.join(key), message, format!("1 to {FLOWS_MAX}"));
            }
        }
        self.restarts(path, transfer)
    }

    fn restarts(&self, path: &KeyPath, transfer: &TransferSpec) -> Result<(), ConfigError> {
        if transfer.restarts.is_some() && transfer.seconds.is_some() {
            let hint = "files and pages begin again: bytes = \"5 MB\", objects = [\"50 kB\", …]";
            let message = "what is sent for a time has nothing to begin again";
            return self.refuse(&path.join("restarts"), message, hint.to_owned());
        }
        if transfer.restarts.is_some_and(|restarts| !(1..=RESTARTS_MAX).contains(&restarts)) {
            let message = "a file cannot begin again so often";
            return self.refuse(&path.join("restarts"), message, format!("1 to {RESTARTS_MAX}"));
        }
        if transfer.restart_from.is_some() && transfer.restarts.is_none() {
            let hint = "add `restarts`, how often".to_owned();
            return self.refuse(&path.join("restart_from"), "nothing begins again", hint);
        }
        let key = path.join("restart_after");
        match transfer.restart_after {
            Some(_) if transfer.restarts.is_none() => {
                let hint = "add `restarts`, how often".to_owned();
                self.refuse(&key, "nothing begins again", hint)
            }
            Some(after) if after > DURATION_MAX => {
                let message = format!("{after} is too long a pause");
                self.refuse(&key, message, format!("at most {DURATION_MAX}"))
            }
            _ => Ok(()),
        }
    }

    fn run(&self) -> Result<(), ConfigError> {
        let path = KeyPath::of(["run"]);
        let Some(run) = &self.spec.run else { return Ok(()) };
        if run.is_empty() {
            let hint = "name the transfers, or leave the key out to run them all".to_owned();
            return self.refuse(&path, "nothing is left to run", hint);
        }
        for (number, name) in run.iter().enumerate() {
            let path = path.join(number.to_string());
            if !self.spec.transfers.contains_key(name) {
                let hint = suggest::hint(name, "transfers", self.spec.transfers.keys());
                return self.refuse(&path, format!("no transfer is called `{name}`"), hint);
            }
            if run[..number].contains(name) {
                return self.refuse(&path, format!("`{name}` is there twice"), None);
            }
        }
        Ok(())
    }
}

fn unfit_interface(name: &str) -> Option<&'static str> {
    let usable = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() {
        Some("is empty")
    } else if name.len() > INTERFACE_CHARS_MAX {
        Some("is too long for the name of an interface")
    } else if !name.chars().all(usable) || name.starts_with('-') {
        Some("is no name for an interface")
    } else if INTERFACES_TAKEN.contains(&name) {
        Some("is a name that the kernel keeps for itself")
    } else {
        None
    }
}
