//! Clients that behave, and clients that do not.

use super::*;
use std::net::SocketAddr;
use std::sync::atomic::AtomicUsize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

struct Server {
    address: SocketAddr,
    draining: Arc<AtomicBool>,
    health: Arc<Health>,
    /// How often the status was requested.
    asked: Arc<AtomicUsize>,
}

async fn start() -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let address = listener.local_addr().expect("bound");
    let draining = Arc::new(AtomicBool::new(false));
    let drains = draining.clone();
    let (health, asked) = (Health::new(1), Arc::<AtomicUsize>::default());
    let asks = asked.clone();
    let status: StatusSource = Arc::new(move || {
        asks.fetch_add(1, Relaxed);
        Status {
            version: "0",
            instance: "main".to_owned(),
            uptime_s: 1.0,
            draining: drains.load(Relaxed),
            data_plane: Snapshot { flows: 42, ..Snapshot::default() },
        }
    });
    let sources = AnswerSources {
        status,
        health: health.clone(),
        draining: draining.clone(),
        reloads: Arc::default(),
        history: Arc::default(),
        names: Arc::from(["gateway.example".to_owned()]),
    };
    serve(listener, sources);
    Server { address, draining, health, asked }
}

impl Server {
    async fn ask(&self, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(self.address).await.expect("connected");
        stream.write_all(request).await.expect("sent");
        let mut answer = Vec::new();
        // A server that closes while a client still sends resets the connection: what was received before counts.
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    }

    async fn get(&self, path: &str) -> String {
        self.ask(
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                .as_bytes(),
        )
        .await
    }
}

#[tokio::test]
async fn every_path_answers() {
    let server = start().await;
    for (path, status, part) in [
        ("/", "200", "<title>midhopd</title>"),
        ("/metrics", "200", "\nmidhop_flows 42.0\n"),
        ("/status.json", "200", "\"flows\":42"),
        ("/history.json", "200", "\"recent\":{\"age_s\":[]"),
        ("/page.css", "200", "text/css"),
        ("/page.js", "200", "text/javascript"),
        ("/healthz", "200", "ok"),
        ("/other", "404", "/metrics"),
    ] {
        let answer = server.get(path).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {answer}");
        assert!(answer.contains(part), "{path}: {answer}");
    }
    server.draining.store(true, Relaxed);
    assert!(server.get("/healthz").await.starts_with("HTTP/1.1 503 "));
}

#[tokio::test]
async fn health_names_what_is_wrong_and_builds_no_status() {
    let server = start().await;
    assert!(server.get("/healthz").await.starts_with("HTTP/1.1 200 "));
    let fault = server.health.fault("a socket", &"gone");
    let answer = server.get("/healthz").await;
    assert!(
        answer.starts_with("HTTP/1.1 503 ") && answer.ends_with("a socket: gone\n"),
        "{answer}"
    );
    drop(fault);
    assert!(server.get("/healthz").await.starts_with("HTTP/1.1 200 "));
    server.health.lose("a worker has panicked".to_owned());
    assert!(server.get("/healthz").await.ends_with("a worker has panicked\n"));
    assert_eq!(server.asked.load(Relaxed), 0);
}

#[tokio::test]
async fn the_page_needs_nothing_from_elsewhere() {
    let server = start().await;
    let page = server.get("/").await;
    assert!(page.contains("content-security-policy: default-src 'none'"));
    assert!(!page.contains("unsafe-inline") && !page.contains("style="), "{page}");
    for path in ["/", "/page.css", "/page.js"] {
        let answer = server.get(path).await;
        // The name of SVG's elements, which no browser loads.
        let answer = answer.replace("http://www.w3.org/2000/svg", "");
        assert!(!answer.contains("http://") && !answer.contains("https://"), "{path}");
        for sink in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
            assert!(
                !answer.contains(sink),
                "{path} has {sink}, which would parse what clients send"
            );
        }
    }
}

#[tokio::test]
async fn a_name_that_is_not_its_own_is_refused() {
    let server = start().await;
    for (host, status) in [
        ("evil.example", "421"),
        ("127.0.0.1.evil.example:9310", "421"),
        ("gateway.example", "200"),
        ("127.0.0.1:9310", "200"),
        ("[::1]:9310", "200"),
    ] {
        for path in ["/", "/metrics", "/status.json", "/history.json", "/healthz"] {
            let request =
                format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
            let answer = server.ask(request.as_bytes()).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{host}{path}: {answer}");
            assert!(status == "200" || !answer.contains("midhop_"), "{answer}");
        }
    }
    let answer = server.ask(b"GET /healthz HTTP/1.0\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.0 200 "), "a probe that names nobody: {answer}");
}

#[tokio::test]
async fn wrong_requests_are_refused_and_the_next_client_is_served() {
    let server = start().await;
    let long = format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "y".repeat(64 << 10));
    for (request, status) in [
        (
            &b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"[..],
            "405",
        ),
        (b"nonsense\r\n\r\n", "400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", "400"),
        (long.as_bytes(), "431"),
    ] {
        let answer = server.ask(request).await;
        let refused = answer.starts_with(&format!("HTTP/1.1 {status} "));
        // The answer to a head that is far too long may be overtaken by the reset.
        assert!(refused || (status == "431" && answer.is_empty()), "{status}: {answer}");
    }
    assert!(server.get("/healthz").await.starts_with("HTTP/1.1 200 "));
}

#[tokio::test(start_paused = true)]
async fn silent_clients_lose_their_places() {
    let server = start().await;
    let mut silent = Vec::new();
    for _ in 0..CONNECTIONS_MAX {
        let mut stream = TcpStream::connect(server.address).await.expect("connected");
        stream.write_all(b"GET / HT").await.expect("sent");
        silent.push(stream);
    }
    // Time advances only while all tasks wait: this is answered once the silent clients were closed.
    assert!(server.get("/healthz").await.starts_with("HTTP/1.1 200 "));
    for stream in &mut silent {
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
        assert!(rest.is_empty() || rest.starts_with(b"HTTP/1.1 408 "));
    }
}
