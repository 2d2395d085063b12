//! Both ends of a tunnel: a proxy on the gateway, which takes flows from the wire, and one on the
//! server's host, to which the tunnel leads.
use crate::stage::{Family, Stage};
use midhop_pki::authority;
use midhopd::data_plane::DataPlane;
use midhopd::ledger::{Counter, Ledger};
use std::path::Path;
use tempfile::TempDir;

/// The UDP port of the far end.
pub const PORT: u16 = 4433;

/// The targets that the far end's peers may request: the stage's networks are private, a
/// documentation prefix leads nowhere, and the servers are on the far end's own host.
pub const TARGETS: &str = "targets = [\"10.0.0.0/8\", \"fd00::/8\", \"192.0.2.0/24\", \
                           \"10.0.2.2/32\", \"fd00:0:0:2::2/128\"]\n";

/// Certificates of one authority, in a directory.
pub struct Authority(TempDir);

impl Authority {
    pub fn new(names: &[&str]) -> Self {
        let directory = TempDir::new().expect("a directory");
        authority::init(directory.path(), "test authority").expect("an authority");
        for name in names {
            authority::issue(directory.path(), name, 30).expect("a certificate");
        }
        Self(directory)
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Issues a certificate for `name`. Its validity begins and ends this many days from now.
    pub fn issue(&self, name: &str, from: i64, to: i64) {
        self.issue_within(name, time::Duration::days(from), time::Duration::days(to));
    }

    /// Issues a certificate for `name` that is valid for this time from now.
    pub fn issue_for(&self, name: &str, lifetime: time::Duration) {
        self.issue_within(name, -time::Duration::DAY, lifetime);
    }

    /// Makes a list of revoked certificates, `crl.pem`, with the present certificates of these
    /// names.
    pub fn revoke(&self, names: &[&str]) {
        let serial = |name: &&str| {
            let pem = std::fs::read(self.path().join(format!("{name}.pem"))).expect("a file");
            let (_, pem) = x509_parser::pem::parse_x509_pem(&pem).expect("PEM");
            let certificate = pem.parse_x509().expect("a certificate");
            rcgen::SerialNumber::from_slice(certificate.raw_serial())
        };
        let now = time::OffsetDateTime::now_utc();
        let revoked = |name| rcgen::RevokedCertParams {
            serial_number: serial(name),
            revocation_time: now,
            reason_code: None,
            invalidity_date: None,
        };
        let params = rcgen::CertificateRevocationListParams {
            this_update: now,
            next_update: now + time::Duration::days(30),
            crl_number: rcgen::SerialNumber::from(1u64),
            issuing_distribution_point: None,
            revoked_certs: names.iter().map(revoked).collect(),
            key_identifier_method: rcgen::KeyIdMethod::Sha256,
        };
        let list = params.signed_by(&self.issuer()).expect("a list");
        std::fs::write(self.path().join("crl.pem"), list.pem().expect("PEM")).expect("a file");
    }

    fn issuer(&self) -> rcgen::Issuer<'static, rcgen::KeyPair> {
        let read = |file: &str| std::fs::read_to_string(self.path().join(file)).expect("a file");
        let key = rcgen::KeyPair::from_pem(&read("ca.key")).expect("a key");
        rcgen::Issuer::from_ca_cert_pem(&read("ca.pem"), key).expect("an authority")
    }

    /// Issues a certificate for `name` with all of these names.
    pub fn issue_as(&self, name: &str, names: Vec<String>) {
        self.issue_to(name, names, -time::Duration::DAY, time::Duration::DAY);
    }

    fn issue_within(&self, name: &str, from: time::Duration, to: time::Duration) {
        self.issue_to(name, vec![name.to_owned()], from, to);
    }

    fn issue_to(&self, name: &str, names: Vec<String>, from: time::Duration, to: time::Duration) {
        let issuer = self.issuer();
        let mut params = rcgen::CertificateParams::new(names).expect("names");
        let now = time::OffsetDateTime::now_utc();
        params.not_before = now + from;
        params.not_after = now + to;
        let own = rcgen::KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&own, &issuer).expect("a certificate");
        let write = |end: &str, text: String| {
            std::fs::write(self.path().join(format!("{name}.{end}")), text).expect("a file");
        };
        write("pem", certificate.pem());
        write("key", own.serialize_pem());
        // Only its owner may read a key.
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        let key = self.path().join(format!("{name}.key"));
        std::fs::set_permissions(key, mode).expect("its mode");
    }

    /// The table of the daemon that has the certificate of `name`.
    pub fn table(&self, name: &str, more: &str) -> String {
        let at = self.path().display();
        format!(
            "[tunnel]\ncertificate = \"{at}/{name}.pem\"\nkey = \"{at}/{name}.key\"\n\
             authority = \"{at}/ca.pem\"\n{more}"
        )
    }
}

/// Two proxies with a tunnel between them.
pub struct Ends {
    pub near: DataPlane,
    pub far: DataPlane,
    pub authority: Authority,
}

impl Ends {
    /// Starts them; `intercept` adds to the near end's table of that name.
    pub fn start(stage: &Stage, family: Family, intercept: &str) -> Self {
        Self::start_with(stage, family, intercept, ["", ""])
    }

    /// The same; `peers` adds to the near end's table of its peer, and to the far end's.
    pub fn start_with(stage: &Stage, family: Family, intercept: &str, peers: [&str; 2]) -> Self {
        let authority = Authority::new(&["near", "far"]);
        let far = start_far(stage, family, &authority, peers[1]);
        let near = stage.start(&near_config(family, &authority, intercept, peers[0], ""));
        Self { near, far, authority }
    }

    /// A count of both ends' ledgers: first the near end's, then the far end's.
    pub fn sums(&self, count: fn(&Ledger) -> &Counter) -> [u64; 2] {
        [&self.near, &self.far].map(|end| end.ledgers().iter().map(|it| count(it).value()).sum())
    }
}

/// The near end's configuration: all flows of its lan go through the tunnel.
pub fn near_config(
    family: Family,
    authority: &Authority,
    intercept: &str,
    peer: &str,
    rule: &str,
) -> String {
    let tables = near_tables(family, authority, peer, rule);
    format!("[intercept]\ninterfaces = \"lan0\"\n{intercept}{tables}")
}

/// The near end's tunnel, and the rule that sends all flows through it; `peer` and `rule` add to
/// these.
pub fn near_tables(family: Family, authority: &Authority, peer: &str, rule: &str) -> String {
    let own = authority.table("near", "");
    let address = std::net::SocketAddr::new(family.server(), PORT);
    format!("{own}[peers.far]\naddress = \"{address}\"\n{peer}[[rules]]\ntunnel = \"far\"\n{rule}")
}

/// The far end's configuration.
pub fn far_config(family: Family, authority: &Authority, more: &str) -> String {
    let address = std::net::SocketAddr::new(family.server(), PORT);
    let own = authority.table("far", &format!("listen = \"{address}\"\n{TARGETS}"));
    format!("{own}[peers.near]\n{more}")
}

/// Starts the far end on the server's host.
pub fn start_far(stage: &Stage, family: Family, authority: &Authority, more: &str) -> DataPlane {
    crate::stage::start(&stage.server, &far_config(family, authority, more))
}
