package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/url"
	"syscall"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

// open asks for flows: each TCP connection to its listener becomes a CONNECT to one target.
func open(args []string) error {
	set := flag.NewFlagSet("open", flag.ExitOnError)
	address := set.String("listen", "127.0.0.1:0", "TCP address")
	proxy := set.String("proxy", "", "UDP address of the proxy")
	name := set.String("name", "", "the proxy's name in its certificate")
	target := set.String("target", "", "where all flows want to go; empty: where each was caught going")
	byTemplate := set.Bool("template", false, "ask by the default template of connect-tcp")
	var id identity
	id.flags(set)
	if err := set.Parse(args); err != nil {
		return err
	}
	own, pool, err := id.load()
	if err != nil {
		return err
	}
	config := &tls.Config{
		Certificates: own, RootCAs: pool, ServerName: *name, NextProtos: []string{http3.NextProtoH3},
	}
	connection, err := quic.DialAddr(context.Background(), *proxy, config, transport())
	if err != nil {
		return err
	}
	var http3Transport http3.Transport
	peer := http3Transport.NewClientConn(connection)
	var listening net.ListenConfig
	if *target == "" {
		listening.Control = transparent
	}
	listener, err := listening.Listen(context.Background(), "tcp", *address)
	if err != nil {
		return err
	}
	// Whoever started this waits for the line.
	fmt.Printf("listening %s\n", listener.Addr())
	for {
		near, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			near := near.(*net.TCPConn)
			target := *target
			if target == "" {
				target = near.LocalAddr().String()
			}
			stream, err := ask(peer, target, *byTemplate, *name)
			if err != nil {
				log.Print(err)
				reset(near)
				return
			}
			relay(near, stream)
		}()
	}
}

// transparent lets a listener take connections to other hosts, which a firewall hands to it.
func transparent(_, _ string, socket syscall.RawConn) error {
	var err error
	control := func(fd uintptr) {
		err = syscall.SetsockoptInt(int(fd), syscall.SOL_IP, syscall.IP_TRANSPARENT, 1)
	}
	failed := socket.Control(control)
	return errors.Join(failed, err)
}

func ask(peer *http3.ClientConn, target string, byTemplate bool, name string) (stream, error) {
	stream, err := peer.OpenRequestStream(context.Background())
	if err != nil {
		return nil, err
	}
	request := &http.Request{
		Method: http.MethodConnect, URL: &url.URL{Host: target}, Host: target, Header: http.Header{},
	}
	if byTemplate {
		path, err := pathOf(target)
		if err != nil {
			return nil, err
		}
		// No extended CONNECT before the proxy has said that it serves it.
		<-peer.ReceivedSettings()
		if !peer.Settings().EnableExtendedConnect {
			return nil, fmt.Errorf("%s serves no extended CONNECT", name)
		}
		request.Proto, request.Host = protocol, name
		request.URL = &url.URL{Scheme: "https", Host: name, Opaque: "//" + name + path}
		request.Header.Set("Capsule-Protocol", "?1")
	}
	if err := stream.SendRequestHeader(request); err != nil {
		return nil, err
	}
	response, err := stream.ReadResponse()
	if err != nil {
		return nil, err
	}
	if response.StatusCode/100 != 2 {
		stream.CancelRead(connectError)
		stream.Close()
		status := response.Header.Get("Proxy-Status")
		return nil, fmt.Errorf("%s: status %d (%s)", target, response.StatusCode, status)
	}
	if byTemplate {
		return newFlow(stream), nil
	}
	return stream, nil
}
