//! Envoy as a far end: its HTTP/3 listener grants CONNECT to every client with a certificate.

use super::{Had, Peer, had, python};
use crate::ends::Authority;
use crate::stage::until;
use midhop_testbed::namespace::Namespace;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The program; `None`, with a clear message, if it is not available.
pub fn words() -> Option<&'static [PathBuf]> {
    static ENVOY: Had = OnceLock::new();
    had(ENVOY.get_or_init(|| Ok(vec![python::install("envoy")?.with_file_name("envoy")])))
}

/// Starts it and waits until it listens. Its log is kept beside the certificates.
pub fn start(place: &Namespace, authority: &Authority, address: SocketAddr) -> Peer {
    let words = words().expect("it was had");
    let file = authority.path().join("envoy.yaml");
    fs::write(&file, configuration(authority, address)).expect("a configuration");
    let log = File::create(authority.path().join("envoy.log")).expect("a log");
    let mut command = Command::new(&words[0]);
    command.arg("-c").arg(&file).args(["--concurrency", "1", "--disable-hot-restart"]);
    command.args(["-l", "warning"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    let child = place.run(|| command.spawn()).expect("entering").expect("envoy");
    let mut peer = Peer { child, address };
    let port = format!(":{:04X} ", address.port());
    until("envoy listens", || {
        let ended = peer.child.try_wait().expect("waiting");
        let log = || fs::read_to_string(authority.path().join("envoy.log")).unwrap_or_default();
        assert!(ended.is_none(), "envoy ended at once:\n{}", log());
        let sockets = place.run(|| fs::read_to_string("/proc/thread-self/net/udp"));
        std::thread::sleep(std::time::Duration::from_millis(20));
        sockets.expect("entering").expect("sockets").contains(&port)
    });
    peer
}

fn configuration(authority: &Authority, address: SocketAddr) -> String {
    let (at, ip, port) = (authority.path().display(), address.ip(), address.port());
    let of = "type.googleapis.com/envoy.extensions";
    let cache = "dns_cache_config: { name: all, dns_lookup_family: V4_PREFERRED }";
    format!(
        r#"
layered_runtime:
  layers:
  - name: static
    static_layer:
      envoy.reloadable_features.allow_multiplexed_upstream_half_close: true
static_resources:
  listeners:
  - name: tunnel
    address: {{ socket_address: {{ protocol: UDP, address: {ip}, port_value: {port} }} }}
    udp_listener_config: {{ quic_options: {{}} }}
    filter_chains:
    - transport_socket:
        name: quic
        typed_config:
          "@type": {of}.transport_sockets.quic.v3.QuicDownstreamTransport
          downstream_tls_context:
            require_client_certificate: true
            common_tls_context:
              tls_certificates: [ {{ certificate_chain: {{ filename: {at}/far.pem }}, private_key: {{ filename: {at}/far.key }} }} ]
              validation_context: {{ trusted_ca: {{ filename: {at}/ca.pem }} }}
      filters:
      - name: http
        typed_config:
          "@type": {of}.filters.network.http_connection_manager.v3.HttpConnectionManager
          codec_type: HTTP3
          stat_prefix: tunnel
          stream_idle_timeout: 0s
          http_filters:
          - name: names
            typed_config:
              "@type": {of}.filters.http.dynamic_forward_proxy.v3.FilterConfig
              {cache}
          - name: router
            typed_config: {{ "@type": {of}.filters.http.router.v3.Router }}
          route_config:
            virtual_hosts:
            - name: all
              domains: [ "*" ]
              routes:
              - match: {{ connect_matcher: {{}} }}
                route:
                  cluster: origin
                  timeout: 0s
                  upgrade_configs: [ {{ upgrade_type: CONNECT, connect_config: {{}} }} ]
  clusters:
  - name: origin
    lb_policy: CLUSTER_PROVIDED
    connect_timeout: 5s
    # Else it gives a connection whose server has ended to the next flow that goes there.
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": {of}.upstreams.http.v3.HttpProtocolOptions
        common_http_protocol_options: {{ max_requests_per_connection: 1 }}
        upstream_http_protocol_options: {{ auto_sni: true, auto_san_validation: true }}
        explicit_http_config: {{ http_protocol_options: {{}} }}
    cluster_type:
      name: origin
      typed_config:
        "@type": {of}.clusters.dynamic_forward_proxy.v3.ClusterConfig
        {cache}
"#
    )
}
