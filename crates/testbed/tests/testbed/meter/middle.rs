//! A middlebox that damages connections in ways that no middlebox should.

use midhop_testbed::meter::Direction;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What happens to the first connection's bytes; later connections (the fetch) pass.
#[derive(Clone, Copy)]
enum Harm {
    /// After so many bytes, both sides get a FIN as at a normal end.
    Cut(usize),
    /// One bit of the byte at this offset is inverted.
    Flip(usize),
}

pub struct Middle {
    pub address: SocketAddr,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Middle {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Middle {
    pub async fn cutting(server: SocketAddr, direction: Direction, after: usize) -> Self {
        Self::new(server, direction, Harm::Cut(after)).await
    }

    pub async fn flipping(server: SocketAddr, direction: Direction, at: usize) -> Self {
        Self::new(server, direction, Harm::Flip(at)).await
    }

    async fn new(server: SocketAddr, direction: Direction, harm: Harm) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let address = listener.local_addr().expect("bound");
        let task = tokio::spawn(async move {
            let mut harm = Some(harm);
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(server).await.expect("the meter's server");
                tokio::spawn(relay(client, server, direction, harm.take()));
            }
        });
        Self { address, task }
    }
}

async fn relay(client: TcpStream, server: TcpStream, direction: Direction, harm: Option<Harm>) {
    let (mut client_read, mut client_write) = client.into_split();
    let (mut server_read, mut server_write) = server.into_split();
    let (up, down) = match direction {
        Direction::Up => (harm, None),
        Direction::Down => (None, harm),
    };
    let up = async move {
        let cut = copy(&mut client_read, &mut server_write, up).await;
        let _ = server_write.shutdown().await;
        (cut, client_read, server_write)
    };
    let down = async move {
        let cut = copy(&mut server_read, &mut client_write, down).await;
        let _ = client_write.shutdown().await;
        (cut, server_read, client_write)
    };
    // A cut on one side ends the other: its halves are dropped while still in use.
    tokio::pin!(up, down);
    tokio::select! {
        (cut, ..) = &mut up => if !cut { down.await; },
        (cut, ..) = &mut down => if !cut { up.await; },
    }
}

/// Whether the copy was cut short.
async fn copy(
    from: &mut (impl AsyncReadExt + Unpin),
    to: &mut (impl AsyncWriteExt + Unpin),
    harm: Option<Harm>,
) -> bool {
    let mut buffer = vec![0; 16 << 10];
    let mut passed = 0;
    loop {
        let most = match harm {
            Some(Harm::Cut(after)) if after == passed => return true,
            Some(Harm::Cut(after)) => buffer.len().min(after - passed),
            _ => buffer.len(),
        };
        let Ok(length) = from.read(&mut buffer[..most]).await else { return false };
        if length == 0 {
            return false;
        }
        if let Some(Harm::Flip(at)) = harm
            && (passed..passed + length).contains(&at)
        {
            buffer[at - passed] ^= 0x10;
        }
        if to.write_all(&buffer[..length]).await.is_err() {
            return false;
        }
        passed += length;
    }
}
