package main

import (
	"errors"
	"io"
	"net"
	"net/url"
	"strings"

	"github.com/quic-go/quic-go/http3"
	"github.com/quic-go/quic-go/quicvarint"
)

// What a flow that is asked for by a template is carried in, by draft-ietf-httpbis-connect-tcp: the trial's
// own protocol and the numbers that go with it.
const (
	protocol    = "connect-tcp-12"
	dataCapsule = http3.CapsuleType(0x2028d7f2)
	lastCapsule = http3.CapsuleType(0x2028d7f3)
	template    = "/.well-known/masque/tcp/"
)

// pathOf is where the default template has a target.
func pathOf(target string) (string, error) {
	host, port, err := net.SplitHostPort(target)
	if err != nil {
		return "", err
	}
	return template + strings.ReplaceAll(url.QueryEscape(host), "+", "%20") + "/" + port + "/", nil
}

// targetOf is the target of a path, as it was escaped.
func targetOf(path string) (string, error) {
	rest, ours := strings.CutPrefix(path, template)
	parts := strings.Split(rest, "/")
	if !ours || len(parts) != 3 || parts[2] != "" {
		return "", errors.New("no such template")
	}
	host, err := url.PathUnescape(parts[0])
	if err != nil {
		return "", err
	}
	return net.JoinHostPort(host, parts[1]), nil
}

// flow is a stream whose bytes are in capsules.
type flow struct {
	stream
	capsules *http3.CapsuleParser
	current  io.Reader
	last     bool
}

func newFlow(stream stream) *flow {
	return &flow{stream: stream, capsules: http3.NewCapsuleParser(stream)}
}

func (f *flow) Read(bytes []byte) (int, error) {
	for {
		if f.current != nil {
			count, err := f.current.Read(bytes)
			if count > 0 || err == nil {
				return count, nil
			}
			if !errors.Is(err, io.EOF) {
				return 0, err
			}
			f.current = nil
			if f.last {
				// The stream's own end is behind it.
				go io.Copy(io.Discard, f.stream)
				return 0, io.EOF
			}
		}
		kind, capsule, err := f.capsules.Next()
		if errors.Is(err, io.EOF) {
			// It was cut off.
			return 0, io.ErrUnexpectedEOF
		}
		if err != nil {
			return 0, err
		}
		switch kind {
		case dataCapsule, lastCapsule:
			f.current, f.last = capsule, kind == lastCapsule
		default:
			if err := capsule.Discard(); err != nil {
				return 0, err
			}
		}
	}
}

func (f *flow) Write(bytes []byte) (int, error) {
	err := http3.WriteCapsule(quicvarint.NewWriter(f.stream), dataCapsule, bytes)
	if err != nil {
		return 0, err
	}
	return len(bytes), nil
}

// Close says that the flow has ended.
func (f *flow) Close() error {
	if err := http3.WriteCapsule(quicvarint.NewWriter(f.stream), lastCapsule, nil); err != nil {
		return err
	}
	return f.stream.Close()
}
