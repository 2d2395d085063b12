// Command go-http2 is somebody else's end of a tunnel over TCP: HTTP/2 CONNECT as Go's own net/http
// speaks it, at either end. Interoperation tests put it beside midhopd.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"syscall"
)

// identity is what both ends show and what they ask for.
type identity struct{ certificate, key, authority string }

func (id *identity) flags(set *flag.FlagSet) {
	set.StringVar(&id.certificate, "certificate", "", "own certificate chain, PEM")
	set.StringVar(&id.key, "key", "", "its key, PEM")
	set.StringVar(&id.authority, "authority", "", "certificates of the authority of the other end, PEM")
}

func (id *identity) load() (*tls.Config, *x509.CertPool, error) {
	own, err := tls.LoadX509KeyPair(id.certificate, id.key)
	if err != nil {
		return nil, nil, err
	}
	pem, err := os.ReadFile(id.authority)
	if err != nil {
		return nil, nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, nil, fmt.Errorf("%s holds no certificate", id.authority)
	}
	return &tls.Config{Certificates: []tls.Certificate{own}, NextProtos: []string{"h2"}}, pool, nil
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("go-http2: ")
	err := errors.New("usage: go-http2 serve|open [flags]")
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

// serve grants flows: each CONNECT becomes a TCP connection to where it wants to go.
func serve(args []string) error {
	set := flag.NewFlagSet("serve", flag.ExitOnError)
	address := set.String("listen", "127.0.0.1:0", "TCP address")
	var id identity
	id.flags(set)
	if err := set.Parse(args); err != nil {
		return err
	}
	config, pool, err := id.load()
	if err != nil {
		return err
	}
	config.ClientCAs, config.ClientAuth = pool, tls.RequireAndVerifyClientCert
	listener, err := net.Listen("tcp", *address)
	if err != nil {
		return err
	}
	// Whoever started this waits for the line.
	fmt.Printf("listening %s\n", listener.Addr())
	server := http.Server{Handler: http.HandlerFunc(grant), TLSConfig: config}
	return server.ServeTLS(listener, "", "")
}

func grant(w http.ResponseWriter, request *http.Request) {
	if request.Method != http.MethodConnect || request.ProtoMajor != 2 {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	far, err := net.Dial("tcp", request.Host)
	if err != nil {
		name := "destination_unavailable"
		if errors.Is(err, syscall.ECONNREFUSED) {
			name = "connection_refused"
		}
		w.Header().Set("Proxy-Status", "go; error="+name)
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	w.WriteHeader(http.StatusOK)
	flush := http.NewResponseController(w)
	if flush.Flush() != nil || !relay(far.(*net.TCPConn), request.Body, flushing{w, flush}, func() {}) {
		// The one way in which a handler can reset its stream.
		panic(http.ErrAbortHandler)
	}
}

// open asks for flows: each TCP connection to its listener becomes a CONNECT to one target.
func open(args []string) error {
	set := flag.NewFlagSet("open", flag.ExitOnError)
	address := set.String("listen", "127.0.0.1:0", "TCP address")
	proxy := set.String("proxy", "", "TCP address of the proxy")
	name := set.String("name", "", "the proxy's name in its certificate")
	target := set.String("target", "", "where all flows want to go")
	var id identity
	id.flags(set)
	if err := set.Parse(args); err != nil {
		return err
	}
	config, pool, err := id.load()
	if err != nil {
		return err
	}
	config.RootCAs, config.ServerName = pool, *name
	transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true, DisableCompression: true}
	listener, err := net.Listen("tcp", *address)
	if err != nil {
		return err
	}
	fmt.Printf("listening %s\n", listener.Addr())
	for {
		near, err := listener.Accept()
		if err != nil {
			return err
		}
		go ask(transport, *proxy, *target, near.(*net.TCPConn))
	}
}

func ask(transport *http.Transport, proxy, target string, near *net.TCPConn) {
	body, up := io.Pipe()
	response, err := transport.RoundTrip(&http.Request{
		Method: http.MethodConnect, URL: &url.URL{Scheme: "https", Host: proxy}, Host: target,
		Header: http.Header{}, Body: body, ContentLength: -1,
	})
	if err != nil || response.StatusCode != http.StatusOK || response.ProtoMajor != 2 {
		log.Print(err, response)
		reset(near)
		return
	}
	relay(near, response.Body, up, func() { up.Close() })
	response.Body.Close()
}

// relay moves bytes both ways until both ends have ended, or one broke; then it is false. What there
// is to do at the end of what the TCP connection says, besides, is end.
func relay(tcp *net.TCPConn, from io.ReadCloser, to io.Writer, end func()) bool {
	ways := make(chan error, 2)
	go func() {
		_, err := io.Copy(struct{ io.Writer }{to}, struct{ io.Reader }{tcp})
		if err == nil {
			end()
		} else if pipe, ok := to.(*io.PipeWriter); ok {
			pipe.CloseWithError(err)
		}
		ways <- err
	}()
	go func() {
		_, err := io.Copy(struct{ io.Writer }{tcp}, struct{ io.Reader }{from})
		if err == nil {
			tcp.CloseWrite()
		}
		ways <- err
	}()
	for range 2 {
		if err := <-ways; err != nil {
			if pipe, ok := to.(*io.PipeWriter); ok {
				pipe.CloseWithError(err)
			}
			from.Close()
			reset(tcp)
			return false
		}
	}
	tcp.Close()
	return true
}

// flushing sends what a handler writes at once.
type flushing struct {
	io.Writer
	*http.ResponseController
}

func (f flushing) Write(bytes []byte) (int, error) {
	count, err := f.Writer.Write(bytes)
	if err == nil {
		err = f.Flush()
	}
	return count, err
}

func reset(tcp *net.TCPConn) {
	tcp.SetLinger(0)
	tcp.Close()
}
