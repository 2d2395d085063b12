// Command quic-go is somebody else's end of a tunnel: HTTP/3 CONNECT as quic-go speaks it, at either
// end. Interoperation tests put it beside midhopd, and the relay bench puts two of them in its place.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/quic-go/quic-go"
)

// The windows that a satellite link of 150 Mbit/s and 600 ms takes: flow control is to slow nothing
// down that this program is measured beside.
const windowBytes = 24 << 20

// identity is what both ends show and what they ask for.
type identity struct{ certificate, key, authority string }

func (id *identity) flags(set *flag.FlagSet) {
	set.StringVar(&id.certificate, "certificate", "", "own certificate chain, PEM")
	set.StringVar(&id.key, "key", "", "its key, PEM")
	set.StringVar(&id.authority, "authority", "", "certificates of the authority of the other end, PEM")
}

func (id *identity) load() ([]tls.Certificate, *x509.CertPool, error) {
	var own []tls.Certificate
	if id.certificate != "" {
		pair, err := tls.LoadX509KeyPair(id.certificate, id.key)
		if err != nil {
			return nil, nil, err
		}
		own = append(own, pair)
	}
	pem, err := os.ReadFile(id.authority)
	if err != nil {
		return nil, nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, nil, fmt.Errorf("%s holds no certificate", id.authority)
	}
	return own, pool, nil
}

func transport() *quic.Config {
	return &quic.Config{
		InitialStreamReceiveWindow:     windowBytes,
		MaxStreamReceiveWindow:         windowBytes,
		InitialConnectionReceiveWindow: 4 * windowBytes,
		MaxConnectionReceiveWindow:     4 * windowBytes,
		MaxIncomingStreams:             1 << 16,
		KeepAlivePeriod:                5 * time.Second,
	}
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("quic-go: ")
	err := errors.New("usage: quic-go serve|open [flags]")
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "serve":
			err = serve(os.Args[2:])
		case "open":
			err = open(os.Args[2:])
		}
	}
	if err != nil {
		log.Fatal(err)
	}
}
