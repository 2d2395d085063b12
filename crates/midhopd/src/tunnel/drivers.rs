//! Towards whom the connection sends that is being driven.
//!
//! quinn asks its socket how many datagrams it is to make at once without saying for which connection. Each
//! connection is driven by a task of its own, and so is known by the task: where what it sent last went to, there
//! goes what it sends next.

use quinn::{AsyncTimer, AsyncUdpSocket, Runtime, TokioRuntime};
use std::{
    cell::Cell,
    io,
    net::{SocketAddr, UdpSocket},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

thread_local! {
    static TOWARDS: Cell<Option<SocketAddr>> = const { Cell::new(None) };
}

/// Whoever is being driven sends there.
pub fn note(peer: SocketAddr) {
    TOWARDS.set(Some(peer));
}

/// Where whoever is being driven has sent last; none: it has not yet.
pub fn towards() -> Option<SocketAddr> {
    TOWARDS.get()
}

/// Tokio, where each task knows that.
#[derive(Debug)]
pub struct Drivers;

impl Runtime for Drivers {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        TokioRuntime.new_timer(at)
    }

    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        TokioRuntime.spawn(Box::pin(Driver { task, towards: None }));
    }

    fn wrap_udp_socket(&self, socket: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        TokioRuntime.wrap_udp_socket(socket)
    }

    fn now(&self) -> Instant {
        TokioRuntime.now()
    }
}

/// What drives a connection, or an endpoint.
struct Driver {
    task: Pin<Box<dyn Future<Output = ()> + Send>>,
    towards: Option<SocketAddr>,
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let outside = TOWARDS.replace(self.towards);
        let polled = self.task.as_mut().poll(cx);
        self.towards = TOWARDS.replace(outside);
        polled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_task_knows_its_own() {
        let (sender, mut told) = tokio::sync::mpsc::unbounded_channel();
        for number in 1..=3_u16 {
            let sender = sender.clone();
            Drivers.spawn(Box::pin(async move {
                let before = towards();
                note(([127, 0, 0, 1], number).into());
                for _ in 0..5 {
                    tokio::task::yield_now().await;
                }
                let _ = sender.send((before, towards().map(|peer| peer.port()), number));
            }));
        }
        drop(sender);
        while let Some((before, after, number)) = told.recv().await {
            assert_eq!((before, after), (None, Some(number)));
        }
        assert_eq!(towards(), None);
    }
}
