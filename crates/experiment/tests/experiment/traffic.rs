//! Cross traffic as written, and which of it is refused.

use midhop_experiment::Scenario;
use midhop_experiment::traffic::{Load, TrafficPlan};
use midhop_units::{Bytes, Duration, Rate};

fn plans(traffic: &str) -> Result<Vec<TrafficPlan>, String> {
    let text = format!(
        "title = \"t\"\nduration = \"30 s\"\n[nodes]\na = {{}}\nb = {{}}\nc = {{}}\n\
         [links.l]\nbetween = [\"a\", \"b\"]\nrate = \"10 Mbit/s\"\n{traffic}"
    );
    let plans = Scenario::parse("t.toml", &text).and_then(|scenario| scenario.plans());
    plans.map(|plans| plans[0].traffic.clone()).map_err(|error| error.to_string())
}

#[test]
fn defaults_are_filled_in() {
    let plans = plans(
        "[traffic.calls]\nkind = \"on-off\"\nfrom = \"a\"\nto = \"b\"\nrate = \"64 kbit/s\"\n\
         packet = \"200 B\"\nshape = 1.5\nstop = \"2 min\"\n\
         [traffic.files]\nkind = \"bulk\"\nfrom = \"b\"\nto = \"a\"\nstart = \"5 s\"\n",
    )
    .expect("can be run");
    assert_eq!(
        plans[0].load,
        Load::OnOff {
            rate: Rate::from_bits_per_s(64_000),
            packet: Bytes::new(200),
            on: Duration::from_ms(500),
            off: Duration::from_ms(500),
            shape: Some(1.5),
        }
    );
    // No traffic lasts longer than the run.
    assert_eq!((plans[0].stop, plans[1].start), (Duration::from_s(30), Duration::from_s(5)));
    assert_eq!(plans[1].load.congestion(), Some("cubic"));
    assert_ne!(plans[0].port, plans[1].port);
}

#[test]
fn what_cannot_be_is_refused_where_it_stands() {
    for (keys, line, expected) in [
        ("kind = \"web\"\nfrom = \"a\"\nto = \"b\"\nflows = 3", "t.toml:14", "no such key"),
        ("kind = \"constant\"\nfrom = \"a\"\nto = \"b\"", "t.toml:10", "`rate` is missing"),
        ("kind = \"bulk\"\nfrom = \"a\"\nto = \"c\"", "t.toml:12", "no links lead"),
        ("kind = \"bulk\"\nfrom = \"a\"\nto = \"x\"", "t.toml:13", "no node is called `x`"),
        ("kind = \"bulk\"\nfrom = \"a\"\nto = \"b\"\nstart = \"40 s\"", "t.toml:14", "end before"),
        (
            "kind = \"arrivals\"\nfrom = \"a\"\nto = \"b\"\nper_second = 1\nbytes = \"1 kB\"\nshape = 1",
            "t.toml:16",
            "no shape",
        ),
        ("kind = \"noise\"\nfrom = \"a\"\nto = \"b\"", "t.toml:11", "noise"),
    ] {
        let error = plans(&format!("[traffic.x]\n{keys}\n")).expect_err(keys);
        assert!(error.contains(line), "{keys}: {error}");
        assert!(error.contains(expected), "{keys}: {error}");
    }
}
