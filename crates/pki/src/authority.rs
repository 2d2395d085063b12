//! A small private authority for the certificates of tunnels: `midhopd pki init | issue | show`.
//!
//! The authority is a directory: its certificate and key, and those that it has issued. It does not belong on a
//! gateway: only `ca.pem` and the gateway's own certificate and key are copied there.
//!
//! Invariant: nothing is overwritten, and no key is ever readable by others than its owner.

use crate::key_file::{self, HINT_EXPOSED, KeyFileError};
use crate::trouble;
use midhop_failure::Failure;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};
use std::{
    fmt::Write as _,
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};
use time::{Duration, OffsetDateTime};
use x509_parser::prelude::{FromDer, GeneralName, Pem, X509Certificate};

/// The files of an authority in its directory.
const AUTHORITY: &str = "ca";
/// How long an authority is valid, and how far back certificates are valid, for clocks that are behind.
const AUTHORITY_DAYS: i64 = 3650;
const BACKDATED: Duration = Duration::hours(24);

/// Makes an authority in `directory`.
///
/// # Errors
/// When there is one already, or the files cannot be written.
pub fn init(directory: &Path, name: &str) -> Result<PathBuf, Failure> {
    fs::create_dir_all(directory).map_err(|error| {
        Failure::run(format!("{} cannot be made", directory.display())).because(error)
    })?;
    let mut params = params(name, Vec::new(), AUTHORITY_DAYS)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let key = KeyPair::generate().map_err(unmade)?;
    let certificate = params.self_signed(&key).map_err(unmade)?;
    write_pair(directory, AUTHORITY, &certificate.pem(), &key)
}

/// Issues a certificate for `name` by the authority in `directory`.
///
/// # Errors
/// When there is no authority, the name cannot be one, or it has a certificate already.
pub fn issue(directory: &Path, name: &str, days: u32) -> Result<PathBuf, Failure> {
    if name == AUTHORITY {
        return Err(Failure::usage(format!("\"{name}\" is the name of the authority's own files"))
            .hint("take the name of a gateway"));
    }
    let read = |file: PathBuf| {
        fs::read_to_string(&file).map_err(|error| {
            Failure::run(format!("{} cannot be read", file.display()))
                .because(error)
                .hint("`midhopd pki init` makes an authority")
        })
    };
    let key = KeyPair::from_pem(&authority_key(&directory.join("ca.key"))?).map_err(unmade)?;
    let authority = read(directory.join("ca.pem"))?;
    let issuer = Issuer::from_ca_cert_pem(&authority, key).map_err(unmade)?;
    let mut params = params(name, vec![name.to_owned()], days.into())?;
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    // Either end may open the tunnel.
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate().map_err(unmade)?;
    let certificate = params.signed_by(&key, &issuer).map_err(unmade)?;
    write_pair(directory, name, &certificate.pem(), &key)
}

/// The authority's key, which must not be readable by others.
fn authority_key(file: &Path) -> Result<String, Failure> {
    let bytes = key_file::read(file).map_err(|error| {
        let hint = match &error {
            KeyFileError::Unreadable(_) => "`midhopd pki init` makes an authority",
            KeyFileError::Exposed { .. } => HINT_EXPOSED,
        };
        Failure::run(format!("{} cannot be taken", file.display())).because(error).hint(hint)
    })?;
    String::from_utf8(bytes)
        .map_err(|error| Failure::run(format!("{} is not text", file.display())).because(error))
}

/// Describes the certificates in `file`.
///
/// # Errors
/// When there is no readable one.
pub fn show(file: &Path) -> Result<String, Failure> {
    let name = file.display();
    let bytes = fs::read(file)
        .map_err(|error| Failure::run(format!("{name} cannot be read")).because(error))?;
    let mut text = String::new();
    for pem in Pem::iter_from_buffer(&bytes) {
        let broken = |error: String| Failure::run(format!("{name} is broken")).because(error);
        let pem = pem.map_err(|error| broken(error.to_string()))?;
        if pem.label != "CERTIFICATE" {
            continue;
        }
        let (_, certificate) =
            X509Certificate::from_der(&pem.contents).map_err(|error| broken(error.to_string()))?;
        describe(&certificate, &pem.contents, &mut text);
    }
    if text.is_empty() {
        return Err(Failure::run(format!("there is no certificate in {name}"))
            .hint("name a .pem file that `midhopd pki` has made"));
    }
    Ok(text)
}

fn describe(certificate: &X509Certificate<'_>, der: &[u8], text: &mut String) {
    let validity = certificate.validity();
    let mut line = |key: &str, value: &dyn std::fmt::Display| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{key:<8} {value}");
    };
    line("subject", &certificate.subject());
    line("issuer", &certificate.issuer());
    line("from", &validity.not_before);
    line("until", &validity.not_after);
    line("valid", &if validity.is_valid() { "yes" } else { "no" });
    line("sha256", &trouble::fingerprint(der));
    let names = certificate.subject_alternative_name().ok().flatten();
    for name in names.iter().flat_map(|extension| &extension.value.general_names) {
        if let GeneralName::DNSName(name) = name {
            line("name", name);
        }
    }
}

fn params(name: &str, names: Vec<String>, days: i64) -> Result<CertificateParams, Failure> {
    let mut params = CertificateParams::new(names)
        .map_err(|error| Failure::usage(format!("\"{name}\" cannot be a name")).because(error))?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    let now = OffsetDateTime::now_utc();
    params.not_before = now - BACKDATED;
    params.not_after = now + Duration::days(days);
    Ok(params)
}

/// Writes key and certificate as `name`, and returns the certificate's path.
fn write_pair(
    directory: &Path,
    name: &str,
    certificate: &str,
    key: &KeyPair,
) -> Result<PathBuf, Failure> {
    let path = |end: &str| directory.join(format!("{name}.{end}"));
    let write = |path: &Path, mode, text: &str| {
        write_new(path, mode, text).map_err(|error| {
            Failure::run(format!("{} cannot be written", path.display()))
                .because(error)
                .hint("what is there is never overwritten: move it away first")
        })
    };
    write(&path("key"), 0o600, &key.serialize_pem())?;
    write(&path("pem"), 0o644, certificate)?;
    Ok(path("pem"))
}

fn write_new(path: &Path, mode: u32, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(text.as_bytes())
}

fn unmade(error: rcgen::Error) -> Failure {
    Failure::run("the certificate cannot be made").because(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn an_authority_issues_what_can_be_shown_and_overwrites_nothing() {
        let directory = tempfile::TempDir::new().expect("a directory");
        let at = directory.path();
        assert!(issue(at, "ground", 30).is_err(), "there is no authority yet");
        init(at, "our authority").expect("an authority");
        let ground = issue(at, "ground", 30).expect("a certificate");
        let text = show(&ground).expect("text");
        for part in
            ["subject  CN=ground", "issuer   CN=our authority", "valid    yes", "name     ground"]
        {
            assert!(text.contains(part), "no \"{part}\" in:\n{text}");
        }
        let before = fs::read(&ground).expect("a file");
        assert!(issue(at, "ground", 30).is_err() && init(at, "another").is_err());
        assert!(issue(at, "ca", 30).is_err());
        assert_eq!(fs::read(&ground).expect("a file"), before);
        for key in ["ca.key", "ground.key"] {
            let mode = fs::metadata(at.join(key)).expect("a file").permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{key}");
            assert!(show(&at.join(key)).is_err(), "a key is no certificate");
        }
    }
}
