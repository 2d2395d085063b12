//! The name by which a client addresses the admin server.
//!
//! Any page can make a browser send requests to this host under the page's own name, if the name's owner lets it
//! resolve to this host's address (DNS rebinding). The browser then takes the answer for the page's. So a request is
//! served only if it names an address, which nobody else can own, `localhost`, or a configured name.

use hyper::{Request, header::HOST};
use std::net::IpAddr;

/// Whether a request addresses this server by one of its own names. A request without a name does not come from a
/// browser.
pub fn is_own<B>(request: &Request<B>, names: &[String]) -> bool {
    let mut hosts = request.headers().get_all(HOST).iter();
    let host = match hosts.next().map(|host| host.to_str()) {
        None => None,
        Some(Ok(host)) => Some(host),
        Some(Err(_)) => return false,
    };
    let asked = request.uri().authority().map(|authority| authority.as_str());
    hosts.next().is_none() && host.into_iter().chain(asked).all(|host| is_name(host, names))
}

fn is_name(host: &str, names: &[String]) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    let name = name.strip_suffix('.').unwrap_or(name);
    let is = |own: &str| name.eq_ignore_ascii_case(own);
    name.parse::<IpAddr>().is_ok() || is("localhost") || names.iter().any(|own| is(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_its_own_count() {
        let names = ["gateway.example".to_owned()];
        for (host, own) in [
            ("127.0.0.1:9310", true),
            ("[::1]:9310", true),
            ("[::1]", true),
            ("localhost", true),
            ("LocalHost.:9310", true),
            ("Gateway.example:80", true),
            ("evil.example:9310", false),
            ("127.0.0.1.evil.example", false),
            ("localhost.evil.example", false),
            ("evil.example:80@127.0.0.1", false),
            ("", false),
            ("[evil.example]", false),
        ] {
            let request = Request::builder().uri("/").header(HOST, host).body(()).expect("it");
            assert_eq!(is_own(&request, &names), own, "{host}");
        }
        let request = |uri: &str, hosts: &[&str]| {
            let builder = Request::builder().uri(uri);
            let builder = hosts.iter().fold(builder, |builder, host| builder.header(HOST, *host));
            builder.body(()).expect("a request")
        };
        assert!(is_own(&request("/", &[]), &names));
        assert!(!is_own(&request("/", &["localhost", "evil.example"]), &names));
        assert!(!is_own(&request("http://evil.example/", &["localhost"]), &names));
    }
}
