// The page: reads /status.json and /history.json each second, and only reads. All text becomes text, never markup.
const $ = id => document.getElementById(id);
const KEPT = { recent: 300, hour: 360 }, SPAN = { recent: 300, hour: 3600 };
const CONDITION = { "near-idle": "A", "near-congested": "B", "far-idle": "C", "far-congested": "D" };
const WAITS = { "far-side": "clients: for the server's answer", window: "connections: for the far end's window, which is closed",
  rate: "connections: for their part of the leg's rate", path: "connections: for the path (congestion control)",
  memory: "directions: for memory, as limits.memory is held", tunnel: "directions: for room in a tunnel" };
const PASSED = { "bypassed_by_rule_total": "a rule", "bypassed_by_watchdog_total": "flows did not come about here",
  "assisted_total": "a rule: they are assisted", "rejected_total": "rejected by a rule" };
const LIMITS = { flows: "limits.flows", source: "limits.flows_per_source", pending: "limits.pending",
  host: "ports, descriptors or memory of this host", unknown: "a translation that nobody knows of" };
const FIREWALL = { multipath: "Multipath TCP", signed: "TCP-MD5 or TCP-AO", rule: "a rule, in the firewall", limit: "a limit, in the firewall" };

let shown = "recent", before = null, history = null;
const charts = {};

function element(name, text, className) {
  const e = document.createElement(name);
  if (text != null) e.textContent = text;
  if (className) e.className = className;
  return e;
}

// A bar and what it says. It turns from 80 % on, and again from 95 %.
function bar(part, text) {
  if (part == null) return NONE;
  const m = document.createElement("meter");
  Object.assign(m, { min: 0, max: 1, low: 0.8, high: 0.95, optimum: 0.5, value: Math.min(1, part) });
  const whole = element("span");
  whole.append(m, text ?? percent(part));
  return whole;
}

// `columns`: head, and what gives a row's cell: text, a node, or null for a dash. Columns without any value are left out.
function table(id, title, note, columns, rows) {
  const host = $(id), body = rows.map(row => columns.map(([, cell]) => cell(row) ?? NONE));
  host.hidden = !rows.length;
  if (!rows.length) return;
  const used = columns.map((_, at) => at === 0 || body.some(cells => cells[at] !== NONE));
  const head = element("tr");
  columns.forEach(([name, , kind], at) => { if (used[at]) head.append(element("th", name, kind)); });
  const lines = body.map(cells => {
    const row = element("tr");
    cells.forEach((cell, at) => {
      if (!used[at]) return;
      const td = element("td", null, [columns[at][2], cell === NONE && "none"].filter(Boolean).join(" "));
      td.dataset.head = columns[at][0];
      td.append(cell);
      row.append(td);
    });
    return row;
  });
  const heading = element("h2", title);
  if (note) heading.append(element("small", note));
  const whole = element("table"), thead = element("thead"), tbody = element("tbody"), scroll = element("div", null, "scroll");
  thead.append(head); tbody.append(...lines); whole.append(thead, tbody); scroll.append(whole);
  host.replaceChildren(heading, scroll);
}

function cards(list) {
  $("cards").replaceChildren(...list.filter(Boolean).map(([value, label]) => {
    const card = element("div", null, "card");
    card.append(element("b", value), element("span", label));
    return card;
  }));
}

// To clients, and to servers, where anything was.
const moved = (down, up) => [down && `${bytes(down)} ↓`, up && `${bytes(up)} ↑`].filter(Boolean).join(" ") || null;
const last = (leg, key) => history?.recent.legs[leg]?.[key].at(-1) ?? null;
const mean = list => { const all = list.filter(it => it != null); return all.length ? all.reduce((a, b) => a + b) / all.length : null; };
// Over the last minute: a second of few segments says little.
const minute = (leg, key) => mean(history?.recent.legs[leg]?.[key].slice(-60) ?? []);
const part = (value, whole) => value == null || !whole ? null : value / whole;
const zero = value => value ? count(value) : null;

function show(status, passed) {
  const d = status.data_plane, now = { d, at: status.uptime_s };
  $("instance").textContent = status.instance === "main" ? "" : status.instance;
  document.title = status.instance === "main" ? "midhopd" : `midhopd ${status.instance}`;
  $("state").textContent = `${status.draining ? "draining, " : ""}up ${time(status.uptime_s)}, version ${status.version}`;
  $("state").className = status.draining ? "bad" : "";
  const [up, down] = ["up_bit_per_s", "down_bit_per_s"].map(key => history?.recent[key].at(-1) ?? 0);
  const held = d.buffered_bytes, heldMax = d.buffered_max_bytes;
  cards([
    [rate(down), `to clients, ${bytes(d.down_bytes_total)} in all`],
    [rate(up), `to servers, ${bytes(d.up_bytes_total)} in all`],
    [count(d.flows), `flows of ${count(d.flows_max)}`],
    [bytes(held), `held of ${bytes(heldMax)}`],
    d.held_syns > 0 && [count(d.held_syns), "clients wait for the server"],
    d.memory_waits_total > 0 && [count(d.memory_waits_total), "waits for memory"],
    d.bypassed_by_limit_total > 0 && [count(d.bypassed_by_limit_total), "flows passed by at a limit"],
  ]);
  problems(d, held, heldMax, status.draining);
  const legs = Object.entries(d.legs).filter(([, leg]) => leg.connections || leg.sent_bytes_total || leg.received_bytes_total || leg.rate_bit_per_s);
  table("legs", "Legs", "of TCP connections, and of tunnels", [
    ["leg", ([name]) => name],
    ["congestion control", ([, l]) => l.congestion || null, "word"],
    ["connections", ([, l]) => zero(l.connections)],
    ["sent", ([name]) => rate(last(name, "sent_bit_per_s"))],
    ["of its rate", ([name, l]) => bar(part(last(name, "sent_bit_per_s"), l.rate_bit_per_s))],
    ["received", ([name]) => rate(last(name, "received_bit_per_s"))],
    ["of its rate in", ([name, l]) => bar(part(last(name, "received_bit_per_s"), l.rate_in_bit_per_s))],
    ["round trip", ([, l]) => l.rtt_s == null ? null : `${time(l.rtt_s)} (least ${time(l.rtt_min_s)})`],
    ["loss, sending", ([name]) => percent(minute(name, "loss_ratio"))],
    ["out of order, receiving", ([name]) => percent(minute(name, "out_of_order_ratio"))],
    ["queue here", ([, l]) => l.queued_bytes ? bytes(l.queued_bytes) : null],
  ], legs);
  table("peers", "Tunnels", null, [
    ["peer", ([name]) => name],
    ["state", ([, p]) => !p.tunnels ? "down" : p.carrier ?? (p.tcp_tunnels ? "open, over TCP" : "open, QUIC"), "word"],
    ["flows", ([, p]) => zero(p.streams)],
    ["round trip", ([, p]) => p.rtt_s == null ? null : time(p.rtt_s)],
    ["may send", ([, p]) => p.rate_bit_per_s == null ? null : rate(p.rate_bit_per_s)],
    ["in flight", ([, p]) => p.in_flight_bytes ? `${bytes(p.in_flight_bytes)} of ${bytes(p.window_bytes)}` : null],
    ["lost", ([, p]) => p.sent_packets_total ? percent(p.lost_packets_total / p.sent_packets_total) : null],
    ["lost before repairs", ([, p]) => p.loss_ratio == null ? null : percent(p.loss_ratio)],
    ["flows by condition", ([, p]) => Object.entries(p.conditions).filter(([, at]) => at.flows).map(([name, at]) => `${CONDITION[name]}: ${at.flows}`).join(", ") || null],
    ["certificate ends", ([, p]) => p.certificate_expires_unix_s == null ? null : `in ${time(p.certificate_expires_unix_s - Date.now() / 1000)}`],
  ], Object.entries(d.peers));
  table("flows", "Flows", d.flows > d.busiest.length ? `the fastest ${d.busiest.length} of ${count(d.flows)}` : null, [
    ["client", f => f.client], ["server", f => f.server, "word"],
    ["legs", f => `${f.client_leg} → ${f.server_leg}`, "word"],
    ["to client", f => f.down_bit_per_s ? rate(f.down_bit_per_s) : null],
    ["to server", f => f.up_bit_per_s ? rate(f.up_bit_per_s) : null],
    ["of its limit", f => f.limit_ratio == null ? null : bar(f.limit_ratio, `${percent(f.limit_ratio)} of ${rate(f.limit_bit_per_s)}`)],
    ["moved", f => moved(f.down_bytes, f.up_bytes)],
    ["age", f => time(f.age_s)],
    ["round trips", f => [f.to_client, f.to_server].map(side => side ? time(side.rtt_s) : NONE).join(" / ")],
    ["waits for", f => [f.down_waits_for && `${f.down_waits_for} ↓`, f.up_waits_for && `${f.up_waits_for} ↑`].filter(Boolean).join(", ") || null, "word"],
    ["condition", f => f.source ? `${CONDITION[f.source.condition]} (${f.source.condition})` : null, "word"],
  ], d.busiest);
  sources(d, now);
  const waiting = Object.entries(d.waiting).filter(([, n]) => n).map(([what, n]) => [WAITS[what] ?? what, n]);
  table("waiting", "Who waits, and for what", null, [["who, and for what", ([what]) => what], ["now", ([, n]) => count(n)]], waiting);
  const reasons = [...Object.entries(PASSED).map(([key, why]) => [why, d[key]]),
    ...Object.entries(d.limits_reached_total).map(([key, n]) => [LIMITS[key] ?? key, n]),
    ...Object.entries(d.firewall_passed_total).map(([key, n]) => [FIREWALL[key] ?? key, n])].filter(([, n]) => n);
  table("passed", "Not split", "since the start, by why", [["why", ([why]) => why], ["flows, or SYNs in the firewall", ([, n]) => count(n)]], reasons);
  const ends = [["split, in all", d.split_total], ...Object.entries(d.refused_total).map(([key, n]) => [`far side: ${key}`, n]),
    ...Object.entries(d.ended_total).map(([key, n]) => [`ended: ${key}`, n]),
    ...Object.entries(d.peers_denied_total).map(([key, n]) => [`denied to a peer: ${key}`, n])].filter(([, n]) => n);
  table("ends", "Split, and how they ended", "since the start", [["what", ([what]) => what], ["flows", ([, n]) => count(n)]], ends);
  return now;
}

function sources(d, now) {
  const passed = before && now.at - before.at, rows = Object.entries(d.source_prefixes).map(([name, at]) => {
    const old = before?.d.source_prefixes[name];
    const speed = key => old && passed > 0 ? Math.max(0, at[key] - old[key]) * 8 / passed : null;
    return { name, at, up: speed("up_bytes_total"), down: speed("down_bytes_total") };
  }).filter(row => row.at.started_total);
  rows.sort((a, b) => (b.up + b.down) - (a.up + a.down) || b.at.down_bytes_total - a.at.down_bytes_total);
  const all = rows.reduce((sum, row) => sum + row.up + row.down, 0), most = rows.slice(0, 20);
  table("sources", "Sources", most.length < rows.length ? `the fastest ${most.length} of ${rows.length}` : "clients by prefix, such as a terminal's", [
    ["prefix", row => row.name], ["flows", row => zero(row.at.flows)],
    ["to clients", row => row.down ? rate(row.down) : null], ["to servers", row => row.up ? rate(row.up) : null],
    ["of all traffic", row => all && row.up + row.down ? percent((row.up + row.down) / all) : null],
    ["moved", row => moved(row.at.down_bytes_total, row.at.up_bytes_total)],
    ["flows so far", row => count(row.at.started_total)],
  ], most);
}

function problems(d, held, heldMax, draining) {
  const list = [], soon = 14 * 86400;
  if (draining) list.push("New flows pass by: the daemon is draining.");
  if (heldMax && held >= heldMax * 0.95) list.push(`Flows hold ${percent(held / heldMax)} of limits.memory: stalled receivers use it.`);
  if (d.flows >= d.flows_max) list.push("limits.flows is reached: new flows pass by.");
  for (const [name, leg] of Object.entries(d.legs)) {
    const used = part(minute(name, "sent_bit_per_s"), leg.rate_bit_per_s);
    if (used > 0.99) list.push(`Leg ${name} sends ${percent(used)} of its rate.`);
  }
  const now = Date.now() / 1000;
  const ends = (what, until) => { if (until != null && until - now < soon) list.push(until < now ? `${what} has expired.` : `${what} ends in ${time(until - now)}.`); };
  for (const [name, until] of Object.entries(d.certificates_expire_unix_s)) ends(name === "own" ? "The certificate" : "The authority's certificate", until);
  for (const [name, peer] of Object.entries(d.peers)) {
    ends(`The certificate of ${name}`, peer.certificate_expires_unix_s);
    if (!peer.tunnels) list.push(`The tunnel to ${name} is down.`);
    else if (peer.carrier && peer.carrier.startsWith("tcp-") && peer.carrier !== "tcp-only") list.push(`The tunnel to ${name} is over TCP (${peer.carrier}).`);
  }
  $("problems").hidden = !list.length;
  $("problems").replaceChildren(...list.map(text => element("li", text)));
}

function draw() {
  if (!history) return;
  const h = history[shown], span = SPAN[shown], end = history.recent.at_s.at(-1) ?? h.at_s.at(-1) ?? 0;
  const ages = h.at_s.map(at => end - at);
  charts.throughput.draw(ages, span, [
    { name: "to clients", look: look(0), values: h.down_bit_per_s }, { name: "to servers", look: look(1), values: h.up_bit_per_s }]);
  const names = Object.keys(h.legs), known = before?.d.legs ?? {};
  const of = key => names.map((name, at) => ({ name, look: look(at), values: h.legs[name][key] }))
    .filter(one => one.values.some(value => value));
  const used = (key, rateKey, way) => names.map((name, at) => {
    const whole = known[name]?.[rateKey];
    return { name: `${name}, ${way}`, look: look(2 * at + (way === "sent" ? 0 : 1)), values: whole ? h.legs[name][key].map(value => part(value, whole)) : [] };
  }).filter(one => one.values.some(value => value));
  charts.used.draw(ages, span, [...used("sent_bit_per_s", "rate_bit_per_s", "sent"), ...used("received_bit_per_s", "rate_in_bit_per_s", "received")], 1);
  charts.rtt.draw(ages, span, of("rtt_s"));
  charts.loss.draw(ages, span, of("loss_ratio"));
  charts.disorder.draw(ages, span, of("out_of_order_ratio"));
  charts.queue.draw(ages, span, of("queued_bytes"));
  charts.held.draw(ages, span, h.buffered_bytes.some(value => value) ? [{ name: "held", look: look(0), values: h.buffered_bytes }] : []);
  charts.flows.draw(ages, span, [{ name: "live", look: look(0), values: h.flows },
    ...(h.held_syns.some(value => value) ? [{ name: "wait for the server", look: look(1), values: h.held_syns }] : [])]);
}

// Appends what is new, column by column; a leg that was not there before has nulls up to then.
function append(own, fresh, most) {
  const first = fresh.at_s.findIndex(at => at > (own.at_s.at(-1) ?? -1));
  if (first < 0) return;
  const length = own.at_s.length, added = fresh.at_s.length - first, cut = Math.max(0, length + added - most);
  const grow = (list, more) => [...(list ?? Array(length).fill(null)), ...(more ? more.slice(first) : Array(added).fill(null))].slice(cut);
  for (const key of Object.keys(own)) if (Array.isArray(own[key])) own[key] = grow(own[key], fresh[key]);
  const zero = {};
  for (const name of new Set([...Object.keys(own.legs), ...Object.keys(fresh.legs)])) {
    const keys = Object.keys(own.legs[name] ?? fresh.legs[name]);
    zero[name] = Object.fromEntries(keys.map(key => [key, grow(own.legs[name]?.[key], fresh.legs[name]?.[key])]));
  }
  own.legs = zero;
}

async function read(path) {
  const response = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(5000) });
  if (!response.ok) throw new Error(`${path}: ${response.status}`);
  return response.json();
}

async function tick() {
  try {
    if (!document.hidden || !before) {
      const after = history ? Math.min(...["recent", "hour"].map(ring => history[ring].at_s.at(-1) ?? -1)) : -1;
      const [status, fresh] = await Promise.all([read("status.json"), read(`history.json?after=${after}`)]);
      // The daemon was started again: its clock begins anew.
      if (history && status.uptime_s < (history.recent.at_s.at(-1) ?? 0)) { history = null; before = null; }
      else if (history) for (const ring of ["recent", "hour"]) append(history[ring], fresh[ring], KEPT[ring]);
      else history = fresh;
      before = show(status, before);
      draw();
      document.body.dataset.readings = Number(document.body.dataset.readings ?? 0) + 1;
    }
  } catch (error) {
    $("state").textContent = "no answer from midhopd";
    $("state").className = "bad";
  }
  setTimeout(tick, 1000);
}

const host = $("charts");
for (const [id, options] of Object.entries({
  throughput: { title: "Throughput", unit: "bit/s, of flows' own data", show: rate, least: 1000, wide: true },
  used: { title: "Utilisation of legs", unit: "% of the configured rate", show: percent, least: 1 },
  rtt: { title: "Round trip", unit: "smoothed, of each leg", show: time, least: 0.001 },
  loss: { title: "Loss on the way out", unit: "% of segments sent again", show: percent, least: 0.01, cap: 1 },
  disorder: { title: "Out of order on the way in", unit: "% of segments that came", show: percent, least: 0.01, cap: 1 },
  queue: { title: "Queue in this host", unit: "bytes that wait to be sent", show: bytes, least: 1000 },
  held: { title: "Held for all flows", unit: "bytes", show: bytes, least: 1000 },
  flows: { title: "Flows", unit: "live", show: value => value == null ? NONE : count(Math.round(value)), least: 4 },
})) {
  charts[id] = new Chart(host, { id: `chart-${id}`, ...options });
  charts[id].figure.hidden = true;
}
for (const button of document.querySelectorAll("[data-span]")) button.addEventListener("click", () => {
  shown = button.dataset.span;
  for (const other of document.querySelectorAll("[data-span]")) other.setAttribute("aria-pressed", String(other === button));
  draw();
});
tick();
