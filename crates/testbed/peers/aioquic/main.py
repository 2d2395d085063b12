"""Somebody else's end of a tunnel: HTTP/3 CONNECT as aioquic speaks it, at either end.

Interoperation tests put it beside midhopd: `main.py serve|open`, with the flags of the program in
../quic-go. aioquic takes whatever comes and keeps what it has no room to send: this program bounds
neither, which a proxy for use would have to.
"""

import argparse
import asyncio
import errno
import functools
import socket
import ssl
import struct
import sys

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.asyncio.server import QuicServer
from aioquic.h3.connection import H3_ALPN, ErrorCode, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

WINDOW_BYTES = 8 << 20
CHUNK_BYTES = 64 << 10
BROKEN = ErrorCode.H3_CONNECT_ERROR


class Flow:
    """One stream of a tunnel and the TCP connection that it stands for."""

    def __init__(self, tunnel, number):
        self.tunnel, self.number = tunnel, number
        # What the tunnel said: bytes, and None at its end.
        self.said = asyncio.Queue()
        self.answer = asyncio.get_running_loop().create_future()
        self.writer = None
        self.broken = False

    def hear(self, data, ended):
        if data:
            self.said.put_nowait(data)
        if ended:
            self.said.put_nowait(None)

    def send(self, data, ended=False):
        if not self.broken:
            self.tunnel.http.send_data(self.number, data, ended)
            self.tunnel.transmit()

    def break_off(self, by_peer=False):
        """Resets what is not over: the stream if the TCP connection broke, and the other way round."""
        if self.broken:
            return
        self.broken = True
        self.said.put_nowait(None)
        if not self.answer.done():
            self.answer.set_result(None)
        for reset in (self.tunnel.quic.reset_stream, self.tunnel.quic.stop_stream):
            try:
                reset(self.number, BROKEN)
            except Exception as error:  # a half that has ended has nothing to reset
                if not by_peer:
                    print(f"stream {self.number}: {error}", file=sys.stderr)
        self.tunnel.transmit()
        if self.writer:
            abort(self.writer)

    async def relay(self, reader, writer):
        """Moves bytes both ways until both ends have ended, or one broke."""
        self.writer = writer
        if self.broken:
            return abort(writer)
        try:
            await asyncio.gather(self.outwards(reader), self.inwards(writer))
            writer.close()
        except OSError:
            self.break_off()
        finally:
            self.tunnel.flows.pop(self.number, None)

    async def outwards(self, reader):
        while data := await reader.read(CHUNK_BYTES):
            self.send(data)
        self.send(b"", True)
        if self.tunnel.enough and not self.broken:
            self.tunnel.quic.stop_stream(self.number, ErrorCode.H3_NO_ERROR)
            self.tunnel.transmit()

    async def inwards(self, writer):
        while (data := await self.said.get()) is not None:
            writer.write(data)
            await writer.drain()
        if not self.broken:
            writer.write_eof()


def abort(writer):
    """Closes a TCP connection with a reset, unless that is closed already."""
    if not writer.transport.is_closing():
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()


class Tunnel(QuicConnectionProtocol):
    """One QUIC connection, and HTTP/3 on it."""

    # Whether it stops listening on a stream once it has said all.
    enough = False

    def __init__(self, quic, stream_handler=None):
        super().__init__(quic, stream_handler)
        self.quic, self.http, self.flows, self.tasks = quic, None, {}, set()

    def quic_event_received(self, event):
        if isinstance(event, events.ProtocolNegotiated):
            self.http = H3Connection(self.quic)
        if isinstance(event, events.ConnectionTerminated):
            for flow in list(self.flows.values()):
                flow.break_off(by_peer=True)
            return
        if isinstance(event, (events.StreamReset, events.StopSendingReceived)):
            flow = self.flows.get(event.stream_id)
            if flow and event.error_code != ErrorCode.H3_NO_ERROR:
                self.flows.pop(event.stream_id).break_off(by_peer=True)
            elif flow and isinstance(event, events.StreamReset):
                # What nobody wanted any more; nor is anybody to blame who reads no more.
                flow.hear(b"", True)
        if self.http:
            for said in self.http.handle_event(event):
                self.http_event_received(said)

    def http_event_received(self, event):
        flow = self.flows.get(event.stream_id)
        if isinstance(event, HeadersReceived) and flow is None:
            flow = self.flows[event.stream_id] = Flow(self, event.stream_id)
            self.begin(grant(flow, dict(event.headers)))
        elif isinstance(event, HeadersReceived) and not flow.answer.done():
            flow.answer.set_result(dict(event.headers))
        if flow and isinstance(event, (DataReceived, HeadersReceived)):
            flow.hear(getattr(event, "data", b""), event.stream_ended)

    def begin(self, work):
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)


async def grant(flow, fields):
    """Connects to where a CONNECT wants to go."""

    def answer(status, *more, ended=False):
        if not flow.broken:
            fields = [(b":status", str(status).encode()), *more]
            flow.tunnel.http.send_headers(flow.number, fields, ended)
            flow.tunnel.transmit()

    if fields.get(b":method") != b"CONNECT" or b":protocol" in fields:
        return answer(405, ended=True)
    host, _, port = fields[b":authority"].decode().rpartition(":")
    try:
        reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except OSError as error:
        refused = error.errno == errno.ECONNREFUSED
        name = "connection_refused" if refused else "destination_unavailable"
        return answer(502, (b"proxy-status", f"aioquic; error={name}".encode()), ended=True)
    answer(200)
    await flow.relay(reader, writer)


async def ask(tunnel, target, reader, writer):
    """Asks for a flow to a target, for a TCP connection."""
    number = tunnel.quic.get_next_available_stream_id()
    flow = tunnel.flows[number] = Flow(tunnel, number)
    fields = [(b":method", b"CONNECT"), (b":authority", target.encode())]
    tunnel.http.send_headers(number, fields)
    tunnel.transmit()
    answer = await flow.answer
    if answer is None or not answer[b":status"].startswith(b"2"):
        tunnel.flows.pop(number, None)
        print(f"{target}: {answer}", file=sys.stderr)
        return abort(writer)
    await flow.relay(reader, writer)


def udp(host, port):
    """A socket with room for bursts."""
    opened = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM)
    for force, plain in ((33, socket.SO_RCVBUF), (32, socket.SO_SNDBUF)):
        try:
            opened.setsockopt(socket.SOL_SOCKET, force, WINDOW_BYTES)
        except OSError:
            opened.setsockopt(socket.SOL_SOCKET, plain, WINDOW_BYTES)
    opened.bind((host, port))
    return opened


def split(address):
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def say(address):
    # Whoever started this waits for the line.
    host, port = address[:2]
    print(f"listening [{host}]:{port}" if ":" in host else f"listening {host}:{port}", flush=True)


async def serve(options, configuration):
    """Grants flows: each CONNECT becomes a TCP connection to where it wants to go."""
    opened = udp(*split(options.listen))
    loop = asyncio.get_running_loop()
    server = functools.partial(QuicServer, configuration=configuration, create_protocol=Tunnel)
    await loop.create_datagram_endpoint(server, sock=opened)
    say(opened.getsockname())
    await asyncio.Event().wait()


async def open_tunnel(options, configuration):
    """Asks for flows: each TCP connection to its listener becomes a CONNECT to one target."""
    host, port = split(options.proxy)
    opened = udp("::" if ":" in host else "0.0.0.0", 0)
    loop = asyncio.get_running_loop()
    quic = QuicConnection(configuration=configuration)
    _, tunnel = await loop.create_datagram_endpoint(lambda: Tunnel(quic), sock=opened)
    tunnel.connect((host, port))
    await tunnel.wait_connected()
    listener = await asyncio.start_server(
        functools.partial(ask, tunnel, options.target), *split(options.listen)
    )
    say(listener.sockets[0].getsockname())
    await tunnel.wait_closed()
    sys.exit("the tunnel is gone")


def main():
    parser = argparse.ArgumentParser(prefix_chars="-", allow_abbrev=False)
    parser.add_argument("role", choices=("serve", "open"))
    for name in ("certificate", "key", "authority", "listen", "proxy", "name", "target", "enough"):
        parser.add_argument(f"-{name}", default="")
    options = parser.parse_args()
    near = options.role == "open"
    configuration = QuicConfiguration(
        alpn_protocols=H3_ALPN,
        is_client=near,
        max_data=2 * WINDOW_BYTES,
        max_stream_data=WINDOW_BYTES,
        server_name=options.name or None,
        verify_mode=ssl.CERT_REQUIRED if near else None,
    )
    Tunnel.enough = bool(options.enough)
    configuration.load_cert_chain(options.certificate, options.key)
    configuration.load_verify_locations(options.authority)
    work = open_tunnel if near else serve
    asyncio.run(work(options, configuration))


main()
