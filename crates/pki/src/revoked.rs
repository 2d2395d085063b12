//! Certificates that are revoked although they have not expired.

use crate::identity::IdentityError;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, pem::PemObject};
use std::{collections::BTreeSet, path::PathBuf};
use x509_parser::{
    certificate::X509Certificate, prelude::FromDer, revocation_list::CertificateRevocationList,
};

/// The contents of the authority's lists.
#[derive(Debug, Default)]
pub struct Revoked {
    lists: Vec<CertificateRevocationListDer<'static>>,
    /// Issuer and serial number of each, as encoded.
    certificates: BTreeSet<(Vec<u8>, Vec<u8>)>,
}

impl Revoked {
    /// Reads the lists from files.
    ///
    /// # Errors
    /// When a file cannot be read or holds no list.
    pub fn read(files: &[PathBuf]) -> Result<Self, IdentityError> {
        let mut revoked = Self::default();
        for file in files {
            let failed = IdentityError::of_file(file);
            let none = || IdentityError::NoList { file: file.clone() };
            let lists = CertificateRevocationListDer::pem_file_iter(file).map_err(&failed)?;
            let lists: Vec<_> = lists.collect::<Result<_, _>>().map_err(&failed)?;
            if lists.is_empty() {
                return Err(none());
            }
            for list in lists {
                revoked.note(&list).ok_or_else(none)?;
                revoked.lists.push(list);
            }
        }
        Ok(revoked)
    }

    fn note(&mut self, list: &[u8]) -> Option<()> {
        let (_, list) = CertificateRevocationList::from_der(list).ok()?;
        let issuer = list.issuer().as_raw();
        let serials = list.iter_revoked_certificates().map(|one| one.raw_serial().to_vec());
        self.certificates.extend(serials.map(|serial| (issuer.to_vec(), serial)));
        let now = ::time::OffsetDateTime::now_utc();
        if list.next_update().is_some_and(|next| next.to_datetime() < now) {
            tracing::warn!(issuer = %list.issuer(), "a certificate revocation list is past its next update: install the newer list");
        }
        Some(())
    }

    /// The lists for TLS, which verifies their signatures.
    pub fn lists(&self) -> Vec<CertificateRevocationListDer<'static>> {
        self.lists.clone()
    }

    /// Whether a list names the certificate.
    pub fn has(&self, certificate: &CertificateDer<'_>) -> bool {
        if self.certificates.is_empty() {
            return false;
        }
        let Ok((_, read)) = X509Certificate::from_der(certificate) else { return false };
        let key = (read.issuer().as_raw().to_vec(), read.raw_serial().to_vec());
        self.certificates.contains(&key)
    }
}
