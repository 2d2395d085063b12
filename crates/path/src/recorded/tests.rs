//! Each format in the form that its program writes, and what is refused.

use super::*;
use midhop_units::Rate;
use proptest::prelude::*;

fn ms(ms: u64) -> Duration {
    Duration::from_ms(ms)
}

fn read_as(text: &str, format: RecordedFormat) -> Recording {
    assert_eq!(RecordedFormat::of(text), Some(format), "{text}");
    read(text, None).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

#[test]
fn delay_lines_are_ten_milliseconds_apart() {
    let recording = read_as("12\n12\n16.5\n14\n", RecordedFormat::DelayLines);
    let trace = recording.delay_trace().expect("a trace");
    assert_eq!(
        trace.steps,
        [(ms(0), ms(12)), (ms(20), Duration::from_us(16_500)), (ms(30), ms(14))]
    );
    assert_eq!(trace.repeat, Some(ms(40)));
}

#[test]
fn a_link_may_begin_within_a_recording() {
    let recording = read_as("12\n12\n16.5\n14\n", RecordedFormat::DelayLines);
    let whole = recording.delay_trace().expect("a trace");
    let late = |from: Duration| beginning(whole.clone(), from);
    assert_eq!(late(Duration::ZERO), Ok(whole.clone()));
    let middle = late(ms(20)).expect("it lasts on");
    assert_eq!(middle.steps, [(ms(0), Duration::from_us(16_500)), (ms(10), ms(14))]);
    assert_eq!(middle.repeat, Some(ms(20)));
    // Between two changes the value is the current one, and the rest is that of the whole trace.
    let between = late(ms(25)).expect("it lasts on");
    for at in 0..15 {
        assert_eq!(between.at(ms(at)).0, whole.at(ms(25 + at)).0, "{at}");
    }
    assert!(late(ms(39)).is_ok());
    let error = late(ms(40)).expect_err("it is over").to_string();
    assert_eq!(
        error,
        "it lasts 40 ms, and the link is to begin at 40 ms of it: let `from` be less than that"
    );
}

#[test]
fn opportunities_only_rise() {
    let recording = read_as("1\n2\n2\n40\n", RecordedFormat::Mahimahi);
    assert_eq!(recording.span(), ms(40));
    assert_eq!(
        recording.rate_trace(false).expect("rates"),
        mahimahi::read("1\n2\n2\n40\n").expect("a trace")
    );
    assert!(recording.delay_trace().is_err());
}

const IRTT: &str = r#"{ "version": {}, "round_trips": [
  { "seqno": 0, "lost": "false", "timestamps": { "client": { "send": { "wall": 1707277440772833721, "monotonic": 22000000 } } },
    "delay": { "receive": -10470921269, "rtt": 17000000, "send": 10488213200 }, "ipdv": {} },
  { "seqno": 1, "lost": "true_down", "timestamps": { "client": { "send": { "wall": 1707277441772833721, "monotonic": 1022000000 } } }, "delay": {} },
  { "seqno": 2, "lost": "false", "timestamps": { "client": { "send": { "wall": 1707277442772833721, "monotonic": 2022000000 } } },
    "delay": { "rtt": 30000000 } } ] }"#;

#[test]
fn round_trips_of_irtt_count_half_each_way() {
    let recording = read_as(IRTT, RecordedFormat::Irtt);
    assert_eq!(recording.delays, [(ms(0), Duration::from_us(8_500)), (ms(2000), ms(15))]);
    assert!(recording.halved);
    let lost: u64 = recording.losses.iter().map(|sample| sample.lost).sum();
    assert_eq!((recording.losses.len(), lost), (3, 1));
}

#[test]
fn numbers_that_never_came_were_lost() {
    let text = "PING 192.0.2.1 (192.0.2.1) 56(84) bytes of data.\n\
        [1700182800.40] 64 bytes from 192.0.2.1: icmp_seq=1 ttl=63 time=60.0 ms\n\
        [1700182800.42] 64 bytes from 192.0.2.1: icmp_seq=2 ttl=63 time=56 ms\n\
        [1700182800.42] 64 bytes from 192.0.2.1: icmp_seq=2 ttl=63 time=56 ms (DUP!)\n\
        [1700182800.50] 64 bytes from 192.0.2.1: icmp_seq=6 ttl=63 time=62.0 ms\n\
        [1700182800.60] 64 bytes from 192.0.2.1: icmp_seq=5 ttl=63 time=162.0 ms\n\
        \n--- 192.0.2.1 ping statistics ---\n6 packets transmitted, 4 received, 33% packet loss, time 5ms\n";
    let recording = read_as(text, RecordedFormat::Ping);
    assert_eq!(recording.delays.len(), 4);
    assert_eq!(recording.delays[0].1, ms(30));
    let [sent, lost] =
        recording.losses.iter().fold([0, 0], |[s, l], it| [s + it.sent, l + it.lost]);
    assert_eq!([sent, lost], [6, 2]);
    // Without times, one second is assumed from one number to the next.
    let bare = "64 bytes from host: icmp_seq=3 ttl=63 time=20.0 ms\n64 bytes from host: icmp_seq=4 ttl=63 time=22.0 ms\n";
    assert_eq!(read_as(bare, RecordedFormat::Ping).delays, [(ms(0), ms(10)), (ms(1000), ms(11))]);
}

#[test]
fn intervals_of_iperf3_are_rates() {
    let text = r#"{"start": {}, "intervals": [
        {"streams": [], "sum": {"start": 0, "end": 1, "seconds": 1, "bits_per_second": 1e6, "omitted": true}},
        {"streams": [], "sum": {"start": 1, "end": 2, "bits_per_second": 8e6, "omitted": false, "packets": 100, "lost_packets": 3},
         "sum_bidir_reverse": {"start": 1, "end": 2, "bits_per_second": 2e6}},
        {"streams": [], "sum": {"start": 2, "end": 3, "bits_per_second": 4e6, "omitted": false}}], "end": {}}"#;
    let recording = read_as(text, RecordedFormat::Iperf3);
    let trace = recording.rate_trace(false).expect("rates");
    let rate = Rate::from_mbit_per_s;
    assert_eq!(trace.steps, [(ms(0), rate(8)), (ms(1000), rate(4))]);
    assert_eq!(trace.repeat, Some(ms(2000)));
    assert_eq!(recording.rate_trace(true).expect("rates").steps, [(ms(0), rate(2))]);
    assert_eq!(recording.losses, [LossSample { at: ms(1000), sent: 100, lost: 3 }]);
}

#[test]
fn seconds_of_wetlinks_are_rates_and_the_minutes_between_are_cut_out() {
    let text = ",site_name,timestamp_start,timestamp_end,server,ip_protocol,transport_protocol,download,upload\n\
        0,OS,2023-09-01 00:00:05+00:00,2023-09-01 00:00:06+00:00,s,IPv4,TCP,200000000.5,20000000\n\
        1,OS,2023-09-01 00:00:06+00:00,2023-09-01 00:00:07+00:00,s,IPv4,TCP,100000000,10000000\n\
        2,OS,2023-09-01 02:03:06+02:00,2023-09-01 02:03:07+02:00,s,IPv4,TCP,50000000,\n";
    let recording = read_as(text, RecordedFormat::WetLinks);
    assert_eq!(recording.down[2].begin, Duration::from_s(181));
    let trace = recording.rate_trace(false).expect("rates");
    let begins: Vec<Duration> = trace.steps.iter().map(|step| step.0).collect();
    assert_eq!(begins, [ms(0), ms(1000), ms(2000)]);
    assert_eq!(trace.repeat, Some(ms(3000)));
    assert_eq!(recording.up.len(), 2);
}

#[test]
fn columns_have_their_units() {
    let text = "# seen on a roof\ntime_ms,rate_mbit_per_s\n100,20\n300,5.5\n";
    let recording = read_as(&text.replace("# seen on a roof\n", ""), RecordedFormat::Csv);
    assert_eq!(recording, read(text, None).expect("a recording"));
    assert_eq!(recording.down[1], RateSample { begin: ms(200), end: ms(400), bit_per_s: 5.5e6 });
    assert_eq!(
        read_as("time_s,rtt_ms\n0,40\n1,50\n", RecordedFormat::Csv).delays[1],
        (ms(1000), ms(25))
    );
}

#[test]
fn bad_input_is_one_error_with_its_line_and_a_hint() {
    for (text, format, line, words) in [
        ("", None, None, "it is empty"),
        ("hello\nworld\n", None, None, "known are mahimahi"),
        ("12\nx\n", None, Some(2), "\"x\" is no delay in milliseconds"),
        ("12\n-4\n", None, Some(2), "out of range"),
        ("12\n1e9\n", None, Some(2), "out of range"),
        ("1\n3\n2\n", Some(RecordedFormat::Mahimahi), None, "line 3 of the trace"),
        ("{\"round_trips\": [\n{}]}", None, Some(2), "irtt client"),
        ("{\"round_trips\": []}", None, None, "no sample"),
        ("{\"intervals\": [\n 3 ]}", None, Some(2), "iperf3 --json"),
        (
            "{\"intervals\": [], \"error\": \"unable to connect\"}",
            None,
            None,
            "iperf3 failed: unable",
        ),
        (
            "{\"intervals\": [{\"sum\": {\"start\": 0, \"end\": 1, \"bits_per_second\": 1e300}}]}",
            None,
            None,
            "out of range",
        ),
        (
            "64 bytes from h: icmp_seq=1 time=1 ms\n64 bytes from h: icmp_seq=x time=2 ms",
            None,
            Some(2),
            "answer to a ping",
        ),
        (
            "64 bytes from h: icmp_seq=1 time=1 ms\n64 bytes from h: icmp_seq=99999999 time=2 ms",
            None,
            Some(2),
            "million",
        ),
        ("timestamp_start,download\n", None, Some(1), "timestamp_end"),
        (
            "timestamp_start,timestamp_end,download,upload\nyesterday,today,1,2\n",
            None,
            Some(2),
            "is no time",
        ),
        (
            "timestamp_start,timestamp_end,download,upload\n2023-09-01 00:00:05,2023-09-01 00:00:06,fast,2\n",
            None,
            Some(2),
            "rate in bit/s",
        ),
        (
            "timestamp_start,timestamp_end,download,upload\n2023-09-01 00:00:05,2023-09-01 00:00:06,1\n",
            None,
            Some(2),
            "upload",
        ),
        ("time_s,rate_mbit_per_s\n0,1\n0,2\n", None, Some(3), "backwards"),
        ("time_s,rate_mbit_per_s\n0,-1\n", None, Some(2), "out of range"),
        ("time_s,delay_ms\n0,1\n1;2\n", None, Some(3), "two numbers"),
    ] {
        let error = read(text, format).expect_err(text);
        let shown = error.to_string();
        assert_eq!(error.line, line, "{text:?}: {shown}");
        assert!(shown.contains(words) && !error.hint.is_empty(), "{text:?}: {shown}");
    }
}

proptest! {
    #[test]
    fn any_text_of_any_format_is_a_recording_or_refused(
        text in "[0-9,.\\-e#a-z_=: {}\\[\\]\"\n]{0,80}",
        format in prop::sample::select(vec![
            RecordedFormat::Mahimahi, RecordedFormat::DelayLines, RecordedFormat::Irtt, RecordedFormat::Ping,
            RecordedFormat::Iperf3, RecordedFormat::WetLinks, RecordedFormat::Csv,
        ]),
    ) {
        if let Ok(recording) = read(&text, Some(format)) {
            prop_assert!(recording.delays.is_sorted_by(|one, other| one.0 < other.0));
            prop_assert!(recording.down.iter().all(|it| it.begin < it.end));
        }
    }
}
