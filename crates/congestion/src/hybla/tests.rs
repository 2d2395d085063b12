//! Tests of the law: vectors, growth, losses, a path that changes.

use super::*;
use midhop_units::Instant;

const MSS: Bytes = Bytes::new(1448);

fn ack(now_ms: u64, segments: u64, rtt_ms: u64, round: u64) -> Ack {
    Ack {
        now: Instant::from_ns(now_ms * 1_000_000),
        acked: Bytes::new(segments * MSS.get()),
        lost: Bytes::ZERO,
        rtt: Some(Duration::from_ms(rtt_ms)),
        delivery_rate: None,
        in_flight: Bytes::ZERO,
        round,
        app_limited: false,
        phase: Phase::Open,
        ..Ack::default()
    }
}

#[test]
fn powers_of_two_are_within_two_in_ten_thousand() {
    for x_q10 in 0..(16 << 10) {
        let exact = f64::from(x_q10) / 1024.0;
        let error = f64::from(power_of_two_q16(x_q10)) / 65_536.0 / exact.exp2() - 1.0;
        assert!(error.abs() < 2e-4, "2^{exact}: {error}");
    }
}

#[test]
fn unbounded_slow_start_is_the_papers() {
    for (rtt_ms, increment) in
        [(25_u32, 1.0), (50, 3.0), (127, 32.82), (254, 1143.0), (300, 4095.0)]
    {
        let gain = gain_q10(rho_q10(rtt_ms * 1000, 25_000), u32::MAX);
        let got = f64::from(gain) / 1024.0;
        assert!((got / increment - 1.0).abs() < 0.01, "{rtt_ms} ms: {got}, not {increment}");
    }
}

#[test]
fn avoidance_sums_the_law_per_segment() {
    // dW/dn = ρ²/W over W acknowledgements: W' = √(W² + 2ρ²W); the sum per segment is a little above
    // where ρ² is large against W.
    for (rho, from, sum) in
        [(24_u32, 24_u32, 171.97), (24, 1000, 1467.04), (24, 7000, 7554.07), (1, 100, 101.0)]
    {
        let mut window = Window {
            cwnd: from,
            ssthresh: 1,
            cwnd_max: u32::MAX,
            fraction_q20: 0,
            rho_q10: rho << 10,
            gain_q10: ONE_Q10,
        };
        for _ in 0..from {
            window.grow(1);
        }
        let got = f64::from(window.cwnd) + f64::from(window.fraction_q20) / 1_048_576.0;
        assert!((got / sum - 1.0).abs() < 0.01, "ρ {rho}, W {from}: {got}, not {sum}");
    }
}

#[test]
fn stretched_acknowledgements_count_what_they_cover() {
    let start = Window {
        cwnd: 500,
        ssthresh: 1,
        cwnd_max: u32::MAX,
        fraction_q20: 0,
        rho_q10: 24 << 10,
        gain_q10: ONE_Q10,
    };
    let grown = |by: u32| {
        let mut window = start;
        for _ in 0..512 / by {
            window.grow(by);
        }
        f64::from(window.cwnd)
    };
    for by in [2, 8, 32, 64, 512] {
        let ratio = grown(by) / grown(1);
        assert!((ratio - 1.0).abs() < 0.02, "{by} per acknowledgement: {ratio}");
    }
}

#[test]
fn pacing_leaves_room_for_the_growth() {
    let mut hybla = Hybla::new(MSS, HyblaSettings { rate: None, ..HyblaSettings::default() });
    assert_eq!(hybla.pacing_rate(), None);
    hybla.on_ack(&ack(0, 0, 600, 0));
    assert_eq!(hybla.window(), Bytes::new(24 * MSS.get()));
    let window = Rate::of(hybla.window(), Duration::from_ms(600));
    assert_eq!(hybla.pacing_rate().map(Rate::bits_per_s), Some(2 * window.bits_per_s()));
}

#[test]
fn slow_start_grows_fourfold_per_round_at_most_and_ends_at_the_known_product() {
    let rate = Rate::from_mbit_per_s(20);
    let mut hybla = Hybla::new(MSS, HyblaSettings { rate: Some(rate), ..HyblaSettings::default() });
    let mut windows = Vec::new();
    let mut now_ms = 0;
    for round in 0..8 {
        let segments = hybla.window().get() / MSS.get();
        windows.push(segments);
        for _ in 0..segments {
            hybla.on_ack(&ack(now_ms, 1, 600, round));
        }
        now_ms += 600;
    }
    // 20 Mbit/s over 600 ms: 1.5 MB, 1036 segments. The first acknowledgement raises 10 to ρ = 24
    // before it counts.
    assert_eq!(windows[0], 10);
    assert_eq!(windows[1], 24 + 10 * 3);
    assert_eq!(windows[2], windows[1] * 4);
    assert_eq!(windows[3], windows[2] * 4);
    assert!(windows[4] > 1036, "avoidance goes on beyond the product: {windows:?}");
    assert_eq!(windows[7], 1554, "and stops at one product and a half");
}

#[test]
fn a_queue_ends_slow_start_at_what_the_path_carries_and_does_not_raise_rho() {
    let mut hybla = Hybla::new(MSS, HyblaSettings::default());
    let rate = Rate::of(Bytes::new(30 * MSS.get()), Duration::from_ms(100));
    hybla.on_ack(&Ack { delivery_rate: Some(rate), ..ack(0, 9, 100, 0) });
    assert_eq!(hybla.rho_q10, 4 << 10);
    for _ in 1..QUEUE_SAMPLES {
        hybla.on_ack(&ack(100, 1, 100, 1));
    }
    for n in 1..=QUEUE_SAMPLES {
        assert!(hybla.window.in_slow_start(), "before sample {n}");
        hybla.on_ack(&ack(200, 0, 300, 2));
    }
    assert!(!hybla.window.in_slow_start());
    // 58 segments, 30 of which the path carries; never less than half are kept.
    assert_eq!(hybla.window(), Bytes::new(30 * MSS.get()));
    assert_eq!(hybla.rho_q10, 4 << 10);
}

#[test]
fn rare_losses_keep_the_window_and_let_it_grow_others_halve_it() {
    let mut hybla =
        Hybla::new(MSS, HyblaSettings { growth_max_q10: 64 << 10, ..HyblaSettings::default() });
    let rate = Rate::of(Bytes::new(200 * MSS.get()), Duration::from_ms(100));
    hybla.on_ack(&Ack { delivery_rate: Some(rate), ..ack(0, 26, 100, 0) });
    let before = hybla.window();
    assert_eq!(before, Bytes::new((10 + 26 * 15) * MSS.get()));
    let now = Instant::from_ns(1);
    hybla.on_loss(&Loss { now, lost: MSS, in_flight: before });
    assert_eq!(hybla.window(), Bytes::new(200 * MSS.get()), "what the path carries");
    // Nine of 400 and the delivered are tolerable; 16 / 200 for each of 100 segments are eight more.
    let recover = |hybla: &mut Hybla, segments, lost| {
        for _ in 0..lost {
            hybla.on_lost_segment(&LostSegment { size: MSS, ..LostSegment::default() });
        }
        hybla.on_ack(&Ack { phase: Phase::Recovery, ..ack(1, segments, 100, 1) });
    };
    assert!(hybla.governs_recovery(), "no proportional reduction");
    recover(&mut hybla, 100, 8);
    let grown = hybla.window().get() / MSS.get();
    assert!((207..=208).contains(&grown), "{grown}");
    recover(&mut hybla, 1, 10);
    assert_eq!(hybla.window(), before.scale(0.5), "too many");
    assert!(!hybla.governs_recovery());
    recover(&mut hybla, 100, 0);
    assert_eq!(hybla.window(), before.scale(0.5));
}

#[test]
fn rho_follows_the_path_after_a_handover_a_timeout_or_long_enough() {
    let handed_over = |change: &dyn Fn(&mut Hybla)| {
        let mut hybla = Hybla::new(MSS, HyblaSettings::default());
        hybla.on_ack(&ack(0, 1, 50, 0));
        change(&mut hybla);
        hybla.on_ack(&ack(10, 1, 100, 1));
        hybla.rho_q10 >> 10
    };
    assert_eq!(handed_over(&|_| ()), 2);
    let now = Instant::from_ns(5_000_000);
    assert_eq!(handed_over(&|hybla| hybla.on_rto(&Rto { now, in_flight: Bytes::ZERO })), 4);
    let handover = |rtt| Handover { now: Instant::from_ns(5_000_000), rtt, rate: None };
    assert_eq!(handed_over(&|hybla| hybla.on_handover(&handover(None))), 4);
    let mut hybla = Hybla::new(MSS, HyblaSettings::default());
    hybla.on_handover(&handover(Some(Duration::from_ms(200))));
    assert_eq!(hybla.rho_q10 >> 10, 8);
    let mut hybla = Hybla::new(MSS, HyblaSettings::default());
    for s in 0..=60 {
        hybla.on_ack(&ack(s * 1000, 1, if s == 0 { 50 } else { 100 }, s));
    }
    assert_eq!(hybla.rho_q10 >> 10, 4);
}

#[test]
fn without_tolerance_a_loss_halves_a_timeout_restarts_and_either_is_undone() {
    let mut hybla =
        Hybla::new(MSS, HyblaSettings { loss_tolerance_q16: 0, ..HyblaSettings::default() });
    hybla.on_ack(&ack(0, 30, 25, 0));
    let before = hybla.window();
    assert_eq!(before, Bytes::new(40 * 1448));
    let now = Instant::from_ns(1);
    hybla.on_loss(&Loss { now, lost: MSS, in_flight: before });
    assert_eq!(hybla.window(), Bytes::new(20 * 1448));
    hybla.on_ack(&Ack { phase: Phase::Recovery, ..ack(1, 10, 25, 1) });
    assert_eq!(hybla.window(), Bytes::new(20 * 1448), "recovery is the transport's");
    hybla.on_rto(&Rto { now, in_flight: before });
    assert_eq!(hybla.window(), MSS);
    hybla.on_spurious(&Spurious { now });
    assert_eq!(hybla.window(), before);
    hybla.on_ack(&Ack { app_limited: true, ..ack(2, 10, 25, 2) });
    assert_eq!(hybla.window(), before, "a window that is not used does not grow");
}

#[test]
fn a_mark_halves_whatever_is_tolerated() {
    let mut hybla = Hybla::new(MSS, HyblaSettings::default());
    let rate = Rate::of(Bytes::new(200 * MSS.get()), Duration::from_ms(100));
    hybla.on_ack(&Ack { delivery_rate: Some(rate), ..ack(0, 26, 100, 0) });
    let before = hybla.window();
    let now = Instant::from_ns(1);
    hybla.on_loss(&Loss { now, lost: Bytes::ZERO, in_flight: before });
    assert_eq!(hybla.window(), before.scale(0.5));
}
