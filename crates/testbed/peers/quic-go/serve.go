package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"syscall"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

// serve grants flows: each CONNECT becomes a TCP connection to where it wants to go.
func serve(args []string) error {
	set := flag.NewFlagSet("serve", flag.ExitOnError)
	address := set.String("listen", "127.0.0.1:0", "UDP address")
	strangers := set.Bool("strangers", false, "serve whoever has no certificate, too")
	templates := set.Bool("template", false, "serve the default template of connect-tcp, too")
	var id identity
	id.flags(set)
	if err := set.Parse(args); err != nil {
		return err
	}
	own, pool, err := id.load()
	if err != nil {
		return err
	}
	asked := tls.RequireAndVerifyClientCert
	if *strangers {
		asked = tls.NoClientCert
	}
	config := http3.ConfigureTLSConfig(&tls.Config{Certificates: own, ClientCAs: pool, ClientAuth: asked})
	listener, err := quic.ListenAddrEarly(*address, config, transport())
	if err != nil {
		return err
	}
	// Whoever started this waits for the line.
	fmt.Printf("listening %s\n", listener.Addr())
	server := http3.Server{Handler: granter{templates: *templates}}
	return server.ServeListener(listener)
}

// granter grants flows. That it serves extended CONNECT, quic-go tells everybody, whether it does or not.
type granter struct{ templates bool }

func (g granter) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	if request.Method != http.MethodConnect {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	target, byTemplate := request.Host, g.templates && request.Proto == protocol
	if byTemplate {
		var err error
		if target, err = targetOf(request.URL.EscapedPath()); err != nil {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Header().Set("Capsule-Protocol", "?1")
	}
	var dialer net.Dialer
	far, err := dialer.DialContext(context.Background(), "tcp", target)
	if err != nil {
		status, name := http.StatusBadGateway, "destination_unavailable"
		if errors.Is(err, syscall.ECONNREFUSED) {
			name = "connection_refused"
		}
		w.Header().Set("Proxy-Status", "quic-go; error="+name)
		w.WriteHeader(status)
		return
	}
	w.WriteHeader(http.StatusOK)
	stream, err := w.(http3.HTTPStreamer).HTTPStream()
	if err != nil {
		far.Close()
		return
	}
	if byTemplate {
		relay(far.(*net.TCPConn), newFlow(stream))
		return
	}
	relay(far.(*net.TCPConn), stream)
}
