package main

import (
	"io"
	"net"
	"sync"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

// What a reset is on a stream, and a stream's is to TCP (RFC 9114 §4.4).
const connectError = quic.StreamErrorCode(http3.ErrCodeConnectError)

// stream is a flow within a tunnel, whichever end opened it.
type stream interface {
	io.ReadWriteCloser
	CancelRead(quic.StreamErrorCode)
	CancelWrite(quic.StreamErrorCode)
}

// relay moves bytes both ways until both ends have ended, or one broke.
func relay(tcp *net.TCPConn, tunnel stream) {
	var both sync.WaitGroup
	both.Add(2)
	broken := func() {
		tunnel.CancelRead(connectError)
		tunnel.CancelWrite(connectError)
		reset(tcp)
	}
	go func() {
		defer both.Done()
		if _, err := io.CopyBuffer(writer{tunnel}, reader{tcp}, make([]byte, 64<<10)); err != nil {
			broken()
			return
		}
		tunnel.Close()
	}()
	go func() {
		defer both.Done()
		if _, err := io.CopyBuffer(writer{tcp}, reader{tunnel}, make([]byte, 64<<10)); err != nil {
			broken()
			return
		}
		tcp.CloseWrite()
	}()
	both.Wait()
	tcp.Close()
}

// reader and writer hide what else their ends can do, so that the copy uses its own buffer.
type reader struct{ io.Reader }
type writer struct{ io.Writer }

func reset(tcp *net.TCPConn) {
	tcp.SetLinger(0)
	tcp.Close()
}
