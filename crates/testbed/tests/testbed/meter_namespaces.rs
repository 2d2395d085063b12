//! The meter between two namespaces, as the testbed uses it.

use midhop_testbed::meter::{
    Amount, Direction, MeterOptions, MeterReport, Progress, Server, ServerOptions, Workload,
};
use midhop_testbed::namespace::{Namespace, veth};
use midhop_units::Bytes;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("threads")
}

fn measure(from: &Namespace, options: &MeterOptions) -> MeterReport {
    from.run(|| {
        let progress = Arc::new(Progress::default());
        runtime().block_on(midhop_testbed::meter::run(options, progress)).expect("a report")
    })
    .expect("the client's namespace is entered")
}

#[test]
fn flows_cross_from_one_namespace_to_another_over_both_families() {
    let (client, server) =
        (Namespace::create("client").expect("made"), Namespace::create("server").expect("made"));
    let [client_end, server_end] =
        veth(&client, "to-server", &server, "to-client", 1500).expect("a pair");
    for (client_address, server_address, prefix) in
        [("10.1.0.1", "10.1.0.2", 24), ("fd00:1::1", "fd00:1::2", 64)]
    {
        let client_address: IpAddr = client_address.parse().expect("an address");
        let server_address: IpAddr = server_address.parse().expect("an address");
        client.add_address("to-server", client_address, prefix).expect("added");
        server.add_address("to-client", server_address, prefix).expect("added");
        client.add_neighbour("to-server", server_address, server_end.mac).expect("added");
        server.add_neighbour("to-client", client_address, client_end.mac).expect("added");

        for direction in [Direction::Down, Direction::Up] {
            let options = ServerOptions {
                listen: SocketAddr::new(server_address, 0),
                once: true,
                ..ServerOptions::default()
            };
            let listening =
                server.run(|| Server::bind(options)).expect("entered").expect("listening");
            let address = listening.address();
            std::thread::scope(|scope| {
                let serving = scope
                    .spawn(|| server.run(|| runtime().block_on(listening.run())).expect("entered"));
                let report = measure(
                    &client,
                    &MeterOptions {
                        direction,
                        bind: Some(client_address),
                        workload: Workload::Flows { count: 3, each: Amount::Bytes(400_000) },
                        ..MeterOptions::new(
                            address.ip().to_string(),
                            address.port(),
                            Amount::Bytes(0),
                        )
                    },
                );
                assert!(report.is_complete(), "{report:#?}");
                assert_eq!(report.transfer.bytes, Bytes::new(1_200_000));
                // All namespaces of one machine share one clock.
                assert!(report.clock_shared && report.warnings.is_empty(), "{:?}", report.warnings);
                serving.join().expect("no panic").expect("served once");
            });
        }
    }
}
