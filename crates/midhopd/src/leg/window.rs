//! The receive window of a flow's socket, bounded by the memory that is free.

use super::buffers::{measured_maximum, resize_receive_buffer};
use crate::ledger::Counter;
use crate::relay::RelayContext;
use midhop_linux::sockopt;
use midhop_linux::tcp_info::TcpInfo;
use midhop_pep::config::LegPlan;
use midhop_pep::receive_window::{BufferChange, ReceiveWindow};
use midhop_units::Bytes;
use nix::libc;
use std::cell::Cell;
use std::fmt;
use std::io;
use std::os::fd::AsFd;

/// `SOCK_RCVBUF_LOCK` (`include/net/sock.h`): the kernel does not size the receive buffer.
const RECEIVE_LOCK: i32 = 2;

/// The receive buffer, as a multiple of what was read in a round trip. The window is twice that, so
/// that the sender can become faster. The kernel offers between a quarter of its buffer and nearly
/// all of it as window, depending on the overhead of segments.
const BUFFERS_PER_RTT: u64 = 8;

/// The receive window of one socket.
pub struct BoundedWindow {
    /// None until the first check of the flow, so that an idle flow is small.
    law: Cell<Option<Box<ReceiveWindow>>>,
    /// Unit: bytes. The buffer that its leg fixes; zero: the kernel sizes it.
    fixed: u32,
}

impl fmt::Debug for BoundedWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoundedWindow").field("fixed", &self.fixed).finish_non_exhaustive()
    }
}

impl BoundedWindow {
    /// Creates it for a new socket of a leg; none: a reload has removed the leg.
    pub fn new(leg: Option<&LegPlan>) -> Self {
        let fixed = leg.and_then(|leg| leg.window).unwrap_or(Bytes::ZERO);
        Self { law: Cell::default(), fixed: u32::try_from(fixed.get()).unwrap_or(u32::MAX) }
    }

    /// Creates it for a socket that another process may have bounded, or whose flow is idle with a
    /// large window open.
    pub fn adopted(leg: &LegPlan, socket: impl AsFd, context: &RelayContext) -> Self {
        let this = Self::new(Some(leg));
        let buffer = receive_buffer(&socket).unwrap_or(Bytes::ZERO);
        let most = this.most();
        let is_bounded = match this.fixed {
            0 => is_locked(&socket).unwrap_or(false),
            _ => buffer < most,
        };
        if is_bounded {
            let law = ReceiveWindow::bounded(context.budget.clone(), most, buffer);
            this.law.set(Some(Box::new(law)));
        }
        this.look_at_rest(socket, context);
        this
    }

    /// Whether the socket has to be checked before more than a little is read.
    pub fn rests(&self) -> bool {
        let law = self.law.take();
        let rests = law.as_ref().is_none_or(|law| law.rests());
        self.law.set(law);
        rests
    }

    /// Checks the socket of a flow that moves, of which `unread` bytes are counted as held. If
    /// nothing changes, this costs no system call.
    pub fn look(&self, socket: impl AsFd, unread: usize, context: &RelayContext) {
        let mut law = self.take_law(context);
        let change = law.judge_moving(Bytes::new(unread as u64), || self.needed(&socket));
        self.law.set(Some(law));
        self.apply(change, socket, &context.ledger.windows_bounded);
    }

    /// Checks the socket of a flow that has become idle: nothing of it is held.
    pub fn look_at_rest(&self, socket: impl AsFd, context: &RelayContext) {
        let law = self.take_law(context);
        self.judge_resting(law, socket, &context.ledger.windows_bounded);
    }

    /// Checks the socket of an idle flow, if the number of flows may require a change.
    pub fn look_again(&self, socket: impl AsFd, bounded: &Counter) {
        match self.law.take() {
            Some(law) if law.rests() && law.matters() => self.judge_resting(law, socket, bounded),
            law => self.law.set(law),
        }
    }

    fn take_law(&self, context: &RelayContext) -> Box<ReceiveWindow> {
        let law = self.law.take();
        law.unwrap_or_else(|| Box::new(ReceiveWindow::new(context.budget.clone(), self.most())))
    }

    /// The buffer that the flow needs: at least the present one, and at least what follows from the
    /// kernel's measurement, which goes on while the kernel does not size the buffer. A leg that
    /// fixes its buffers determines it.
    fn needed(&self, socket: impl AsFd) -> Bytes {
        if self.fixed > 0 {
            return self.most();
        }
        let read = TcpInfo::of(&socket).map_or(0, |info| info.read_per_rtt);
        let measured = Bytes::new(BUFFERS_PER_RTT * u64::from(read));
        receive_buffer(socket).map_or(measured, |buffer| measured.max(buffer))
    }

    fn most(&self) -> Bytes {
        let most = if self.fixed == 0 { measured_maximum() } else { self.fixed.into() };
        Bytes::new(most)
    }

    fn judge_resting(&self, mut law: Box<ReceiveWindow>, socket: impl AsFd, bounded: &Counter) {
        // If the buffer cannot be read or set, the socket is gone, which its owner notices.
        let change = receive_buffer(&socket).ok().and_then(|buffer| {
            let unread = sockopt::unread(&socket).unwrap_or(0);
            law.judge_resting(buffer, Bytes::new(unread as u64))
        });
        self.law.set(Some(law));
        self.apply(change, socket, bounded);
    }

    fn apply(&self, change: Option<BufferChange>, socket: impl AsFd, bounded: &Counter) {
        let outcome = match change {
            None => return,
            Some(BufferChange::Bound(bytes)) => {
                bounded.add(1);
                resize_receive_buffer(&socket, bytes)
            }
            Some(BufferChange::Release(_)) if self.fixed > 0 => {
                resize_receive_buffer(&socket, self.most())
            }
            Some(BufferChange::Release(bytes)) => release(&socket, bytes),
        };
        if let Err(error) = outcome {
            tracing::debug!(%error, ?change, "a receive buffer could not be resized");
        }
    }
}

/// Sets a buffer, and lets the kernel size it from then on.
fn release(socket: impl AsFd, bytes: Bytes) -> io::Result<()> {
    resize_receive_buffer(&socket, bytes)?;
    // Before Linux 5.14 there is no such option: the buffer stays as it was.
    let locks = buffer_locks(&socket)?;
    sockopt::set_int(socket, libc::SOL_SOCKET, libc::SO_BUF_LOCK, locks & !RECEIVE_LOCK)
}

/// The receive buffer as the kernel has it, with the overhead of segments.
fn receive_buffer(socket: impl AsFd) -> io::Result<Bytes> {
    let bytes = int_of(socket, libc::SO_RCVBUF)?;
    Ok(Bytes::new(u64::try_from(bytes).unwrap_or(0)))
}

fn is_locked(socket: impl AsFd) -> io::Result<bool> {
    Ok(buffer_locks(socket)? & RECEIVE_LOCK != 0)
}

/// Which buffers the kernel does not size.
fn buffer_locks(socket: impl AsFd) -> io::Result<i32> {
    int_of(socket, libc::SO_BUF_LOCK)
}

fn int_of(socket: impl AsFd, option: i32) -> io::Result<i32> {
    let mut value = [0; 4];
    sockopt::read(socket, libc::SOL_SOCKET, option, &mut value)?;
    Ok(i32::from_ne_bytes(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use midhop_pep::budget::Budget;
    use midhop_pep::config::Plan;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;

    const LEAST: u64 = 256 << 10;

    fn context(limit: u64) -> RelayContext {
        let budget = Arc::new(Budget::new(limit));
        budget.set_window_least(LEAST);
        RelayContext::new(1, budget, Arc::default(), Arc::default())
    }

    fn pair() -> io::Result<(TcpStream, TcpStream)> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let near = TcpStream::connect(listener.local_addr()?)?;
        Ok((near, listener.accept()?.0))
    }

    /// Moves bytes as fast as possible, and checks the window as a relay does. Returns the largest
    /// buffer that was seen.
    fn moved(
        (near, far): &(TcpStream, TcpStream),
        bytes: usize,
        look: impl Fn(&TcpStream),
    ) -> io::Result<Bytes> {
        let mut most = Bytes::ZERO;
        std::thread::scope(|scope| {
            scope.spawn(|| (&mut &*near).write_all(&vec![1; bytes]));
            let (mut left, mut room) = (bytes, vec![0; 1 << 20]);
            while left > 0 {
                let count = (&mut &*far).read(&mut room[..left.min(1 << 20)])?;
                left -= count;
                look(far);
                most = most.max(receive_buffer(far)?);
            }
            Ok(most)
        })
    }

    #[test]
    fn a_fast_flow_is_left_to_the_kernel_while_memory_is_free() -> io::Result<()> {
        let sockets = pair()?;
        let (window, context) = (BoundedWindow::new(None), context(1 << 30));
        moved(&sockets, 64 << 20, |far| window.look(far, 0, &context))?;
        assert_eq!(context.ledger.windows_bounded.value(), 0);
        assert!(!is_locked(&sockets.1)?, "the kernel goes on measuring");
        Ok(())
    }

    #[test]
    fn a_fast_flow_is_bounded_where_memory_is_short_and_freed_later() -> io::Result<()> {
        let sockets = pair()?;
        let context = context(1 << 20);
        let window = BoundedWindow::new(None);
        moved(&sockets, 16 << 20, |far| window.look(far, 0, &context))?;
        let buffer = receive_buffer(&sockets.1)?;
        assert!(
            context.ledger.windows_bounded.value() > 0 && is_locked(&sockets.1)?,
            "its window grew to {buffer}"
        );
        assert!(buffer.get() <= LEAST + (1 << 19), "its window grew to {buffer}");
        // More memory becomes free.
        context.budget.set_limit(1 << 30);
        window.look(&sockets.1, 0, &context);
        assert!(!is_locked(&sockets.1)?, "the kernel measures again");
        let most = moved(&sockets, 16 << 20, |far| window.look(far, 0, &context))?;
        assert!(most > buffer, "it stayed at {most}");
        Ok(())
    }

    #[test]
    fn a_bounded_window_is_no_larger_than_its_flow_needs() -> io::Result<()> {
        let sockets = pair()?;
        let context = context(32 << 20);
        let window = BoundedWindow::new(None);
        moved(&sockets, 1000, |far| window.look(far, 0, &context))?;
        let buffer = receive_buffer(&sockets.1)?;
        assert!(is_locked(&sockets.1)?, "the kernel's most is more than there is");
        assert!(buffer.get() <= 2 << 20, "a flow of 1000 bytes has {buffer}");
        // The kernel goes on measuring, and the buffer grows.
        let most = moved(&sockets, 64 << 20, |far| window.look(far, 0, &context))?;
        assert!(most > buffer && context.ledger.windows_bounded.value() > 1, "it stayed at {most}");
        Ok(())
    }

    #[test]
    fn a_socket_that_another_process_bounded_is_bounded_and_freed() -> io::Result<()> {
        let sockets = pair()?;
        let plan = Plan::read("test.toml", "[intercept]\ninterfaces = \"lan0\"\n").expect("a plan");
        let leg = &plan.legs[0];
        let context = context(1 << 20);
        let dead = BoundedWindow::new(Some(leg));
        moved(&sockets, 16 << 20, |far| dead.look(far, 0, &context))?;
        drop(dead);
        assert!(is_locked(&sockets.1)? && context.budget.promised() == 0);
        // The next process has no more memory.
        let next = BoundedWindow::adopted(leg, &sockets.1, &context);
        let buffer = receive_buffer(&sockets.1)?;
        assert!(is_locked(&sockets.1)? && buffer.get() <= LEAST + (1 << 19), "{buffer}");
        assert!(context.budget.promised() > 0);
        // Then it has.
        context.budget.set_limit(1 << 30);
        next.look_again(&sockets.1, &context.ledger.windows_bounded);
        assert!(!is_locked(&sockets.1)? && receive_buffer(&sockets.1)? > buffer);
        Ok(())
    }

    #[test]
    fn a_wide_window_that_another_process_left_is_bounded_though_nothing_arrives() -> io::Result<()>
    {
        let sockets = pair()?;
        let plan = Plan::read("test.toml", "[intercept]\ninterfaces = \"lan0\"\n").expect("a plan");
        let leg = &plan.legs[0];
        resize_receive_buffer(&sockets.1, Bytes::new(4 << 20))?;
        let locks = buffer_locks(&sockets.1)? & !RECEIVE_LOCK;
        sockopt::set_int(&sockets.1, libc::SOL_SOCKET, libc::SO_BUF_LOCK, locks)?;
        let before = receive_buffer(&sockets.1)?;
        let _next = BoundedWindow::adopted(leg, &sockets.1, &context(1 << 20));
        let after = receive_buffer(&sockets.1)?;
        assert!(after < before && after.get() <= LEAST + (1 << 19), "{before}, then {after}");
        Ok(())
    }
}
