//! Keeps the TLS alert with which a peer ends a connection. The library for HTTP/2 keeps only its
//! text.

use rustls::AlertDescription;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The alert, once there is one.
pub type Alert = Arc<OnceLock<AlertDescription>>;

/// A TLS stream that keeps the alert which ended it.
#[derive(Debug)]
pub struct Alerted<S> {
    inner: S,
    alert: Alert,
}

impl<S> Alerted<S> {
    /// Keeps it in `alert`.
    pub fn new(inner: S, alert: Alert) -> Self {
        Self { inner, alert }
    }

    fn note<T>(&self, outcome: io::Result<T>) -> io::Result<T> {
        let inner = outcome.as_ref().err().and_then(io::Error::get_ref);
        if let Some(rustls::Error::AlertReceived(alert)) = inner.and_then(|it| it.downcast_ref()) {
            // Only the first alert is kept.
            let _ = self.alert.set(*alert);
        }
        outcome
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Alerted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.inner).poll_read(cx, buffer);
        read.map(|outcome| self.note(outcome))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Alerted<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}
