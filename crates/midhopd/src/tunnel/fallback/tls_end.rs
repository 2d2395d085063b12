//! Keeps how a peer ended its TLS stream. The library for HTTP/2 keeps only the text of an alert, and reports a
//! stream that ended without `close_notify` (RFC 8446 §6.1) as one that ended in order if it has nothing to send.

use rustls::AlertDescription;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How a peer ended its TLS stream.
#[derive(Debug, Default)]
pub struct TlsEnd {
    alert: OnceLock<AlertDescription>,
    failed: AtomicBool,
}

impl TlsEnd {
    /// The alert that ended it, if one did.
    pub fn alert(&self) -> Option<AlertDescription> {
        self.alert.get().copied()
    }

    /// Whether reading failed: the peer has not ended the stream in order.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Relaxed)
    }
}

/// A TLS stream that keeps how it ended.
#[derive(Debug)]
pub struct NotedTls<S> {
    inner: S,
    end: Arc<TlsEnd>,
}

impl<S> NotedTls<S> {
    /// Keeps it in `end`.
    pub fn new(inner: S, end: Arc<TlsEnd>) -> Self {
        Self { inner, end }
    }

    fn note(&self, error: io::Error) -> io::Error {
        self.end.failed.store(true, Relaxed);
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
        if let Some(rustls::Error::AlertReceived(alert)) = inner {
            // Only the first alert is kept.
            let _ = self.end.alert.set(*alert);
        }
        error
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for NotedTls<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.inner).poll_read(cx, buffer);
        read.map_err(|error| self.note(error))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for NotedTls<S> {
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
