//! Finds rules of the host's own firewall ahead of interception, behind it, or in its way. It reads nft's list of all
//! rules, and reports the exact line that would help.
//!
//! Most rules of a router do not matter to midhopd: it holds a SYN once all of them have decided. It reports rules
//! that drop packets of the daemon's own sockets, that decide after it, or that treat a split flow differently from a
//! forwarded one.

use crate::{CheckState, Finding};
use midhop_linux::nft;
use midhop_pep::config::{Assist, Intercept};
use serde_json::Value;
use std::{collections::BTreeSet, fs};

const NAME: &str = "firewall";
/// Where connection tracking begins.
const CONNTRACK: i64 = -200;

/// Checks the rules of this host against this interception.
pub(crate) fn examine(intercept: &Intercept, assist: &Assist) -> Vec<Finding> {
    let hint = "run it as root to have the host's rules looked at";
    let listed = nft::ask(&["-j", "list", "ruleset"]).ok();
    let ruleset: Option<Value> = listed.and_then(|listed| serde_json::from_str(&listed).ok());
    let mut findings = match ruleset {
        Some(ruleset) => judge(&ruleset, intercept, assist),
        None => vec![Finding::of(NAME, CheckState::Unknown, "its rules cannot be read", hint)],
    };
    findings.extend(older());
    findings
}

/// Rules of the older iptables, which nft does not list.
fn older() -> Option<Finding> {
    let has_tables = ["ip_tables_names", "ip6_tables_names"].iter().any(|file| {
        let names = fs::read_to_string(format!("/proc/net/{file}"));
        names.is_ok_and(|names| !names.trim().is_empty())
    });
    has_tables.then(|| {
        Finding::of(
            NAME,
            CheckState::Could,
            "there are rules of iptables-legacy, which are not looked at here",
            "see `iptables-legacy-save`; where INPUT or OUTPUT drop: iptables-legacy -I INPUT -m socket \
             --transparent -j ACCEPT",
        )
    })
}

/// A chain with its rules.
struct Chain<'a> {
    family: &'a str,
    table: &'a str,
    name: &'a str,
    /// Its hook. None: others jump to it.
    hook: Option<&'a str>,
    kind: &'a str,
    priority: i64,
    drops: bool,
    rules: Vec<&'a [Value]>,
}

impl Chain<'_> {
    /// As nft's commands name it.
    fn full(&self) -> String {
        format!("{} {} {}", self.family, self.table, self.name)
    }

    fn is_at(&self, hook: &str) -> bool {
        self.hook == Some(hook)
    }
}

/// Returns the findings for a list of all rules.
fn judge(ruleset: &Value, intercept: &Intercept, assist: &Assist) -> Vec<Finding> {
    let entries = ruleset["nftables"].as_array().map(Vec::as_slice).unwrap_or_default();
    let chains = chains(entries);
    let mut findings = Vec::new();
    for chain in chains.iter().filter(|chain| chain.hook.is_some()) {
        findings.extend(closed(chain, &chains));
        findings.extend(drops_early(chain, &chains));
        findings.extend(late(chain, intercept));
    }
    for chain in &chains {
        findings.extend(rules_of(chain, intercept));
    }
    for entry in entries {
        let flowtable = &entry["flowtable"];
        if let (Some(family), Some(table), Some(name)) =
            (text(flowtable, "family"), text(flowtable, "table"), text(flowtable, "name"))
        {
            findings.push(Finding::of(
                NAME,
                CheckState::Could,
                format!("flowtable {family} {table} {name}: forwarded flows are offloaded"),
                "split flows are not offloaded, and only their SYNs pass the forward chain, its \
                 counters and its quotas; flows that pass by are offloaded as before",
            ));
            if assist.is_on() {
                findings.push(Finding::of(
                    NAME,
                    CheckState::Could,
                    format!("flowtable {family} {table} {name}: what it takes of assisted flows is not repaired"),
                    "packets on the short cut meet no chain; have the rule that adds flows leave those of \
                     `action = \"assist\"` alone, in both directions (nft: ip saddr != 203.0.113.0/24 ip daddr != \
                     203.0.113.0/24 flow add @NAME)",
                ));
            }
        }
    }
    if findings.is_empty() {
        findings.push(Finding::yes(NAME, "no rule of this host is in the way"));
    }
    findings
}

/// All chains of IP families except the daemon's own.
fn chains(entries: &[Value]) -> Vec<Chain<'_>> {
    let mut chains: Vec<Chain<'_>> = entries
        .iter()
        .filter_map(|entry| {
            let chain = &entry["chain"];
            let (family, table) = (text(chain, "family")?, text(chain, "table")?);
            let is_own = family == "inet" && table.starts_with("midhop_");
            if is_own || !["inet", "ip", "ip6"].contains(&family) {
                return None;
            }
            Some(Chain {
                family,
                table,
                name: text(chain, "name")?,
                hook: text(chain, "hook"),
                kind: text(chain, "type").unwrap_or_default(),
                priority: chain["prio"].as_i64().unwrap_or(0),
                drops: text(chain, "policy") == Some("drop"),
                rules: Vec::new(),
            })
        })
        .collect();
    for entry in entries {
        let rule = &entry["rule"];
        let Some(expressions) = rule["expr"].as_array() else { continue };
        let place = (text(rule, "family"), text(rule, "table"), text(rule, "chain"));
        let own = chains
            .iter_mut()
            .find(|chain| place == (Some(chain.family), Some(chain.table), Some(chain.name)));
        if let Some(chain) = own {
            chain.rules.push(expressions);
        }
    }
    chains
}

/// A filter that admits only known packets, in or out: it has to know the daemon's sockets.
fn closed(chain: &Chain<'_>, chains: &[Chain<'_>]) -> Option<Finding> {
    let way = match chain.hook? {
        "input" => "of packets for this host",
        "output" => "of packets of this host",
        _ => return None,
    };
    let is_closed = chain.drops || chain.rules.last().is_some_and(|rule| is_plain_drop(rule));
    if !is_closed || chain.kind != "filter" {
        return None;
    }
    let reached = reached(chain, chains);
    let rules = || reached.iter().flat_map(|chain| chain.rules.iter());
    if rules().any(|rule| lets_in(rule)) {
        return None;
    }
    let line = format!("nft insert rule {} socket transparent 1 accept", chain.full());
    // nft cannot show some rules of iptables.
    if rules().any(|rule| mentions(rule, "xt")) {
        return Some(Finding::of(
            NAME,
            CheckState::Could,
            format!(
                "{} drops packets that it does not know {way}; nft cannot read all its rules",
                chain.full()
            ),
            &format!("unless one of them accepts what is established: {line}"),
        ));
    }
    Some(Finding::of(
        NAME,
        CheckState::Could,
        format!(
            "{} drops packets that it does not know {way}, including the daemon's",
            chain.full()
        ),
        &line,
    ))
}

/// The chains that a packet of a chain may reach, itself first.
fn reached<'a, 'b>(chain: &'b Chain<'a>, chains: &'b [Chain<'a>]) -> Vec<&'b Chain<'a>> {
    let mut reached = vec![chain];
    let mut names = BTreeSet::from([chain.name]);
    let mut at = 0;
    while let Some(next) = reached.get(at).copied() {
        at += 1;
        for rule in &next.rules {
            for target in targets(rule) {
                let found = chains.iter().find(|it| {
                    (it.family, it.table, it.name) == (chain.family, chain.table, target)
                });
                if let Some(found) = found.filter(|_| names.insert(target)) {
                    reached.push(found);
                }
            }
        }
    }
    reached
}

/// Where a rule may continue, in verdicts and maps of them.
fn targets(rule: &[Value]) -> Vec<&str> {
    let mut targets = Vec::new();
    let mut rest: Vec<&Value> = rule.iter().collect();
    while let Some(value) = rest.pop() {
        match value {
            Value::Object(fields) => {
                for (key, value) in fields {
                    if key == "jump" || key == "goto" {
                        targets.extend(text(value, "target"));
                    }
                    rest.push(value);
                }
            }
            Value::Array(values) => rest.extend(values),
            _ => {}
        }
    }
    targets
}

/// Whether a rule lets packets of the daemon's sockets pass: established ones, those of a transparent socket, or all.
fn lets_in(rule: &[Value]) -> bool {
    if !mentions(rule, "accept") {
        return false;
    }
    let known = mentions(rule, "established") || mentions(rule, "transparent");
    known || rule.iter().all(|it| has(it, "accept") || has(it, "counter"))
}

fn is_plain_drop(rule: &[Value]) -> bool {
    let ends = |it: &Value| has(it, "drop") || has(it, "reject");
    rule.iter().any(ends) && rule.iter().all(|it| ends(it) || has(it, "counter") || has(it, "log"))
}

/// Reports rules that drop a packet before its destination is known. Checks of reverse paths do no harm: the daemon's
/// routing rules keep them from its packets.
fn drops_early(chain: &Chain<'_>, chains: &[Chain<'_>]) -> Option<Finding> {
    if !chain.is_at("prerouting") || chain.kind != "filter" {
        return None;
    }
    let is_closed = chain.drops;
    let reached = reached(chain, chains);
    let harm = |rule: &&&[Value]| {
        let rule: &[Value] = rule;
        mentions(rule, "drop") && !mentions(rule, "fib") && !mentions(rule, "invalid")
    };
    if !is_closed && !reached.iter().flat_map(|chain| chain.rules.iter()).any(|rule| harm(&rule)) {
        return None;
    }
    Some(Finding::of(
        NAME,
        CheckState::Could,
        format!(
            "{} (prerouting, priority {}) drops packets before midhopd sees for whom they are",
            chain.full(),
            chain.priority
        ),
        &format!(
            "where flows pass by for it: nft insert rule {} iifname \"lo\" accept; nft insert rule {0} \
             socket transparent 1 accept",
            chain.full()
        ),
    ))
}

/// Reports rules that decide about a SYN after it was held, and rules that read packets after their delivery was
/// decided.
fn late(chain: &Chain<'_>, intercept: &Intercept) -> Option<Finding> {
    let hooks = &intercept.hooks;
    let (ours, key, what) = match chain.hook? {
        "postrouting" => (hooks.hold, "hold", "SYNs are held before it"),
        "prerouting" if chain.kind != "nat" => {
            (hooks.delivery, "delivery", "packets are delivered to sockets before it")
        }
        _ => return None,
    };
    let harms = |rule: &&[Value]| {
        ["drop", "reject", "snat", "masquerade", "mangle", "accept", "queue", "xt"]
            .iter()
            .any(|word| mentions(rule, word))
    };
    if chain.priority < i64::from(ours) || !(chain.drops || chain.rules.iter().any(harms)) {
        return None;
    }
    Some(Finding::of(
        NAME,
        CheckState::Could,
        format!(
            "{} (priority {}) comes behind midhopd's at {ours}: {what}, and it decides too late",
            chain.full(),
            chain.priority
        ),
        &format!("[intercept] hooks = {{ {key} = {} }}", chain.priority.saturating_add(1)),
    ))
}

/// Reports single rules.
fn rules_of(chain: &Chain<'_>, intercept: &Intercept) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |detail: String, hint: &str| {
        findings.push(Finding::of(NAME, CheckState::Could, detail, hint));
    };
    let any = |word: &str| chain.rules.iter().any(|rule| mentions(rule, word));
    if any("notrack") {
        add(
            format!("{} takes packets out of connection tracking (notrack)", chain.full()),
            "where other rules are stateful, split flows of these packets are unknown to them: give the flows \
             a rule with action = \"bypass\", or notrack only what is not intercepted",
        );
    }
    if any("tproxy") {
        add(
            format!("{} hands flows to another transparent proxy (tproxy)", chain.full()),
            "its connections in TIME_WAIT are taken for midhopd's; keep the two on different interfaces",
        );
    }
    if chain.rules.iter().any(|rule| rule.iter().any(|it| marks(it, intercept.mark))) {
        add(
            format!("{} sets bits of the firewall mark that are midhopd's", chain.full()),
            &format!(
                "choose others with intercept.mark, which is {:#x}, or set yours as `meta mark set meta \
                 mark & {:#x} | …`",
                intercept.mark, intercept.mark
            ),
        );
    }
    if chain.is_at("prerouting") && chain.priority < CONNTRACK && any("queue") {
        add(
            format!("{} hands packets to another program (queue)", chain.full()),
            "what that program drops or holds, midhopd does not see",
        );
    }
    findings
}

/// Whether a statement sets a packet's mark to a number with one of these bits.
fn marks(statement: &Value, mask: u32) -> bool {
    let mangle = &statement["mangle"];
    let is_mark = text(&mangle["key"]["meta"], "key") == Some("mark");
    let value = mangle["value"].as_u64();
    is_mark && value.is_some_and(|value| value & u64::from(mask) != 0)
}

fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value[key].as_str()
}

fn has(value: &Value, key: &str) -> bool {
    value.get(key).is_some()
}

/// Whether a word occurs anywhere in a rule, as a key or as a value.
fn mentions(rule: &[Value], word: &str) -> bool {
    fn inside(value: &Value, word: &str) -> bool {
        match value {
            Value::String(text) => text == word,
            Value::Array(values) => values.iter().any(|value| inside(value, word)),
            Value::Object(fields) => {
                fields.iter().any(|(key, value)| key == word || inside(value, word))
            }
            _ => false,
        }
    }
    rule.iter().any(|value| inside(value, word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use midhop_pep::config::OneOrMany;
    use serde_json::json;

    fn chain(name: &str, hook: &str, priority: i64, policy: &str) -> Value {
        json!({ "chain": {
            "family": "inet", "table": "t", "name": name, "type": "filter", "hook": hook,
            "prio": priority, "policy": policy
        } })
    }

    fn rule(chain: &str, expressions: &Value) -> Value {
        json!({ "rule": { "family": "inet", "table": "t", "chain": chain, "expr": expressions } })
    }

    fn judged(entries: &[Value]) -> Vec<Finding> {
        judge(&json!({ "nftables": entries }), &Intercept::default(), &Assist::default())
    }

    fn hints(entries: &[Value]) -> Vec<String> {
        judged(entries).into_iter().filter_map(|found| found.hint).collect()
    }

    #[test]
    fn a_filter_that_knows_the_daemons_sockets_is_no_harm() {
        let closed = chain("i", "input", 0, "drop");
        let line = "nft insert rule inet t i socket transparent 1 accept";
        assert_eq!(hints(std::slice::from_ref(&closed)), [line]);
        let established = json!([
            { "match": { "op": "in", "left": { "ct": { "key": "state" } }, "right": ["established", "related"] } },
            { "accept": null }
        ]);
        assert!(hints(&[closed.clone(), rule("i", &established)]).is_empty());
        let by_map = json!([{ "vmap": {
            "key": { "ct": { "key": "state" } },
            "data": { "set": [["established", { "accept": null }], ["invalid", { "drop": null }]] }
        } }]);
        assert!(hints(&[closed.clone(), rule("i", &by_map)]).is_empty());
        let transparent = json!([
            { "match": { "op": "==", "left": { "socket": { "key": "transparent" } }, "right": 1 } },
            { "accept": null }
        ]);
        assert!(hints(&[closed.clone(), rule("i", &transparent)]).is_empty());
        // By a chain of its own.
        let own = json!({ "chain": { "family": "inet", "table": "t", "name": "own" } });
        let jump = json!([{ "jump": { "target": "own" } }]);
        let entries = [closed.clone(), own, rule("i", &jump), rule("own", &established)];
        assert!(hints(&entries).is_empty());
        // What is dropped at the end is dropped.
        let open = chain("i", "input", 0, "accept");
        let last = json!([{ "counter": { "packets": 0, "bytes": 0 } }, { "drop": null }]);
        assert_eq!(hints(&[open.clone(), rule("i", &last)]), [line]);
        assert!(hints(&[open]).is_empty());
        let ssh = json!([{ "match": { "left": 1, "right": 22 } }, { "accept": null }]);
        assert_eq!(hints(&[closed.clone(), rule("i", &ssh)]), [line]);
        // Rules of iptables that nft cannot show.
        let found = hints(&[closed, rule("i", &json!([{ "xt": null }]))]);
        assert!(found.len() == 1 && found[0].ends_with(line) && found[0] != line, "{found:?}");
    }

    #[test]
    fn what_decides_too_late_is_reported_with_the_key() {
        let masquerade = rule("p", &json!([{ "masquerade": null }]));
        let late = [chain("p", "postrouting", 300, "accept"), masquerade.clone()];
        assert_eq!(hints(&late), ["[intercept] hooks = { hold = 301 }"]);
        let usual = [chain("p", "postrouting", 100, "accept"), masquerade];
        assert!(hints(&usual).is_empty());
        let counting = rule("p", &json!([{ "counter": null }]));
        assert!(hints(&[chain("p", "postrouting", 300, "accept"), counting]).is_empty());
    }

    #[test]
    fn the_daemons_own_table_and_other_families_are_left_out() {
        let own = json!({ "chain": {
            "family": "inet", "table": "midhop_main", "name": "in", "type": "filter", "hook": "input",
            "prio": 0, "policy": "drop"
        } });
        let bridge = json!({ "chain": {
            "family": "bridge", "table": "t", "name": "i", "type": "filter", "hook": "input",
            "prio": 0, "policy": "drop"
        } });
        let found = judged(&[own, bridge]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].verdict, CheckState::Yes);
        assert_eq!(judged(&[]).len(), 1);
    }

    #[test]
    fn single_rules_are_reported() {
        let early = chain("p", "prerouting", -300, "accept");
        let judgement = |expressions: Value| judged(&[early.clone(), rule("p", &expressions)]);
        for (word, expressions) in [
            ("notrack", json!([{ "notrack": null }])),
            ("tproxy", json!([{ "tproxy": { "port": 1 } }])),
            ("drops packets", json!([{ "match": { "left": 1, "right": 2 } }, { "drop": null }])),
            (
                "firewall mark",
                json!([{ "mangle": { "key": { "meta": { "key": "mark" } }, "value": 0x0100_0001 } }]),
            ),
        ] {
            let found = judgement(expressions);
            assert!(found.iter().any(|it| it.detail.contains(word)), "{word}: {found:?}");
            assert!(found.iter().all(|it| it.hint.is_some()));
        }
        let reverse_path = json!([
            { "match": { "left": { "fib": { "result": "oif", "flags": ["saddr", "iif"] } }, "right": false } },
            { "drop": null }
        ]);
        assert_eq!(judgement(reverse_path)[0].verdict, CheckState::Yes);
        let small = json!([{ "mangle": { "key": { "meta": { "key": "mark" } }, "value": 7 } }]);
        assert_eq!(judgement(small)[0].verdict, CheckState::Yes);
        let flowtable = json!({ "flowtable": { "family": "inet", "table": "t", "name": "f" } });
        let alone = judged(std::slice::from_ref(&flowtable));
        assert_eq!(alone.len(), 1);
        assert!(alone[0].detail.starts_with("flowtable inet t f"));
        // Where flows are assisted it matters once more.
        let assist = Assist { interfaces: OneOrMany(vec!["sat0".to_owned()]), ..Assist::default() };
        let ruleset = json!({ "nftables": [flowtable] });
        let both = judge(&ruleset, &Intercept::default(), &assist);
        assert_eq!(both.len(), 2);
        assert!(both[1].detail.ends_with("is not repaired"), "{}", both[1].detail);
    }
}
