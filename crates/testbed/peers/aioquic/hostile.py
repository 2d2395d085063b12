"""A peer that turned, as aioquic lets it speak: it has a certificate, and does whatever harms.

`hostile.py` comes to a far end again and again for some seconds; each session is one act, chosen by dice:
bytes withheld, headers without an end, resets, stalls, floods of streams, settings that lie, capsules cut
anywhere, limits that it does not keep, packets that are noise. It reaches into aioquic where that would keep
it from breaking a rule. At the end it says how many sessions of which kind there were.
"""

import argparse
import asyncio
import collections
import random
import ssl
import sys
import time

from aioquic.buffer import encode_uint_var as number
from aioquic.h3.connection import H3_ALPN
from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

from aioquic.asyncio.protocol import QuicConnectionProtocol

DATA, HEADERS, SETTINGS, GOAWAY = 0, 1, 4, 7
CREDIT_SETTING = CREDIT_STREAM = 0x2FEC0004
PATIENCE_S = 10


class Session(QuicConnectionProtocol):
    """One connection, and what has come on it."""

    def __init__(self, quic, stream_handler=None):
        super().__init__(quic, stream_handler)
        self.quic, self.heard = quic, collections.Counter()

    def quic_event_received(self, event):
        if isinstance(event, events.StreamDataReceived):
            self.heard[event.stream_id] += len(event.data)

    def say(self, stream, data, ended=False):
        self.quic.send_stream_data(stream, data, ended)
        self.transmit()

    def open(self, is_unidirectional=False):
        return self.quic.get_next_available_stream_id(is_unidirectional)

    def control(self, payload):
        """The control stream, with these settings."""
        stream = self.open(True)
        self.say(stream, number(0) + frame(SETTINGS, payload))
        return stream


class Door:
    """A socket that is connected already, though aioquic names an address each time."""

    def __init__(self, transport):
        self.transport, self.closed = transport, False

    def sendto(self, data, *_address):
        if not self.closed:
            self.transport.sendto(data)


def frame(kind, payload):
    return number(kind) + number(len(payload)) + payload


def fields(*pairs):
    """A field section of literals, without names of the static table (RFC 9204, 4.5.6)."""
    said = b"\0\0"
    for name, value in pairs:
        said += prefixed(len(name), 3, 0x20) + name + prefixed(len(value), 7, 0) + value
    return said


def prefixed(value, bits, first):
    """An integer of RFC 7541, 5.1."""
    most = (1 << bits) - 1
    if value < most:
        return bytes([first | value])
    said, value = bytes([first | most]), value - most
    while value >= 128:
        said, value = said + bytes([value & 127 | 128]), value >> 7
    return said + bytes([value])


def connect(options):
    return frame(HEADERS, fields((b":method", b"CONNECT"), (b":authority", options.target.encode())))


def template(options):
    host, _, port = options.target.rpartition(":")
    return frame(
        HEADERS,
        fields(
            (b":method", b"CONNECT"),
            (b":protocol", b"connect-tcp"),
            (b":scheme", b"https"),
            (b":authority", b"far:443"),
            (b":path", f"/.well-known/masque/tcp/{host.strip('[]')}/{port}/".encode()),
            (b"capsule-protocol", b"?1"),
        ),
    )


async def settle(session):
    """Lets the far end answer."""
    await asyncio.sleep(dice.random() * 0.05)


async def answered(session, stream):
    begin = time.monotonic()
    while not session.heard[stream] and time.monotonic() < begin + PATIENCE_S:
        await asyncio.sleep(0.005)


async def withhold(session, options):
    """Bytes of streams never come, and all that is behind them does."""
    session.control(b"" if dice.random() < 0.5 else number(CREDIT_SETTING) + number(1 << 20))
    for _ in range(dice.randrange(1, 8)):
        stream = session.open()
        session.say(stream, connect(options) + number(DATA) + number(1 << 40))
        await answered(session, stream)
        sender = session.quic._streams[stream].sender
        hole = sender._buffer_stop
        sender.write(dice.randbytes(1 << dice.randrange(10, 21)))
        sender._pending.subtract(hole, hole + 1)
        session.transmit()
    await settle(session)


async def endless_headers(session, options):
    """Fields, frames of fields and unknown frames that have no end."""
    session.control(b"")
    stream = session.open()
    kind = dice.choice((HEADERS, HEADERS, 0x21, SETTINGS, 0x40 + dice.randrange(1000)))
    if dice.random() < 0.3:
        session.say(stream, number(kind) + number(1 << 50))
        for _ in range(100):
            session.say(stream, dice.randbytes(4096))
    for _ in range(dice.randrange(100)):
        pairs = [(b":method", b"CONNECT"), (b":authority", options.target.encode())]
        pairs += [(b"x-%d" % at, dice.randbytes(10).hex().encode()) for at in range(40)]
        session.say(stream, frame(kind, fields(*pairs)))
        await asyncio.sleep(0)
    await settle(session)


async def reset(session, options):
    """Streams that end abruptly, in each way, before and behind the answer."""
    session.control(b"")
    for _ in range(dice.randrange(1, 60)):
        stream = session.open()
        session.say(stream, connect(options) + frame(DATA, dice.randbytes(dice.randrange(3000))))
        if dice.random() < 0.3:
            await answered(session, stream)
        ways = [session.quic.reset_stream, session.quic.stop_stream]
        for way in dice.sample(ways, dice.randrange(1, 3)):
            way(stream, dice.choice((0, 0x100, 0x10C, 0x10F, 1 << 40)))
        session.transmit()


async def stall(session, options):
    """It reads nothing of what it has asked for, and says half of what it has begun."""
    session.control(b"")
    session.quic._write_connection_limits = lambda *_, **__: None
    session.quic._write_stream_limits = lambda *_, **__: None
    for _ in range(dice.randrange(1, 10)):
        stream = session.open()
        session.say(stream, connect(options) + frame(DATA, dice.randbytes(200_000)))
    stream = session.open()
    whole = connect(options)
    session.say(stream, whole[: dice.randrange(len(whole))])
    await asyncio.sleep(dice.random() * 0.5)


async def flood(session, options):
    """As many streams as it may have, of both kinds, and then some."""
    session.control(b"")
    if dice.random() < 0.5:
        session.quic._remote_max_streams_bidi = session.quic._remote_max_streams_uni = 1 << 20
    for _ in range(dice.randrange(300, 3000)):
        stream = session.open(dice.random() < 0.2)
        session.quic.send_stream_data(stream, connect(options)[: dice.randrange(1, 60)])
        if dice.random() < 0.05:
            session.transmit()
            await asyncio.sleep(0)
    session.transmit()
    await settle(session)


async def lie(session, options):
    """Settings that contradict each other, come twice, are reserved, or too large."""
    kinds = (1, 2, 3, 4, 5, 6, 7, 8, 0x33, 0x21, CREDIT_SETTING, CREDIT_SETTING - 1, 1 << 40)
    said = b""
    for _ in range(dice.randrange(1, 12)):
        said += number(dice.choice(kinds)) + number(dice.choice((0, 1, 9, 1 << 30, (1 << 62) - 1)))
    if dice.random() < 0.3:
        said = said[: dice.randrange(len(said) + 1)]
    control = session.control(said)
    if dice.random() < 0.3:
        session.say(control, frame(SETTINGS, said))
    if dice.random() < 0.3:
        session.control(said)
    if dice.random() < 0.3:
        session.say(control, frame(GOAWAY, number(dice.randrange(9))), dice.random() < 0.5)
    credit = session.open(True)
    session.say(credit, number(CREDIT_STREAM))
    for _ in range(dice.randrange(300)):
        limit = dice.choice((0, 1, 1 << 20, (1 << 62) - 1))
        session.say(credit, number(dice.randrange(40)) + number(limit))
    for _ in range(4):
        stream = session.open()
        session.say(stream, connect(options) + frame(DATA, b"x" * 5000))
    await settle(session)


async def cut_capsules(session, options):
    """Capsules, whole, unknown, and cut anywhere, in frames that are cut elsewhere."""
    session.control(b"")
    for _ in range(dice.randrange(1, 10)):
        stream = session.open()
        capsules = b""
        for _ in range(dice.randrange(1, 6)):
            kind = dice.choice((0x2028D7F2, 0x2028D7F3, 0, 0x21, dice.randrange(1 << 30)))
            capsules += frame(kind, dice.randbytes(dice.randrange(3000)))
        capsules = capsules[: dice.randrange(len(capsules) + 1)]
        said, at = template(options), 0
        while at < len(capsules):
            size = dice.randrange(1, 2000)
            said += frame(DATA, capsules[at : at + size])
            at += size
        said = said if dice.random() < 0.7 else said[: dice.randrange(len(said))]
        session.say(stream, said, dice.random() < 0.5)
    await settle(session)


async def exceed(session, options):
    """More than QUIC's credit lets it say."""
    session.control(b"")
    quic = session.quic
    quic._remote_max_data = quic._remote_max_stream_data_bidi_remote = 1 << 40
    stream = session.open()
    session.say(stream, connect(options) + number(DATA) + number(1 << 40))
    for _ in range(dice.randrange(1, 600)):
        session.say(stream, dice.randbytes(16 << 10))
        await asyncio.sleep(0)
    await settle(session)


async def noise(session, options):
    """Packets that nobody can read, among others that are sound."""
    session.control(b"")
    stream = session.open()
    session.say(stream, connect(options))
    for _ in range(300):
        data = dice.randbytes(dice.randrange(1, 1400))
        if dice.random() < 0.5:
            data = bytes([data[0] & 0x3F | 0x40]) + session.quic._peer_cid.cid + data
        session._transport.sendto(data)
    await settle(session)


async def visit(act, options, configuration):
    """One session; it goes in order, or without a word."""
    host, _, port = options.proxy.rpartition(":")
    loop = asyncio.get_running_loop()
    quic = QuicConnection(configuration=configuration)
    address = (host.strip("[]"), int(port))
    transport, session = await loop.create_datagram_endpoint(
        lambda: Session(quic), remote_addr=address
    )
    session._transport = Door(transport)
    try:
        session.connect(address)
        await asyncio.wait_for(session.wait_connected(), PATIENCE_S)
        try:
            await act(session, options)
        except (RuntimeError, AssertionError):
            # aioquic lets nothing be done with a stream that the daemon has stopped.
            pass
        if dice.random() < 0.7:
            quic.close(dice.choice((0, 0x100, 0x10C)), reason_phrase="\n\x1b[31mforged")
            session.transmit()
    finally:
        # Its timers go on, and have nobody to tell.
        session._transport.closed = True
        transport.close()


async def work(options, configuration):
    acts = (withhold, endless_headers, reset, stall, flood, lie, cut_capsules, exceed, noise)
    done, failed = collections.Counter(), 0
    end = time.monotonic() + float(options.seconds)
    turn = 0
    while time.monotonic() < end or turn < len(acts):
        # Each of them once, then as the dice say.
        act = acts[turn] if turn < len(acts) else dice.choice(acts)
        turn += 1
        try:
            await visit(act, options, configuration)
            done[act.__name__] += 1
        except (ConnectionError, asyncio.TimeoutError, OSError) as error:
            failed += 1
            print(f"{act.__name__}: {error!r}", file=sys.stderr)
    print(f"sessions {sum(done.values())} failed {failed} {dict(done)}", flush=True)


def main():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("certificate", "key", "authority", "proxy", "name", "target", "seconds", "seed"):
        parser.add_argument(f"-{name}", required=True)
    options = parser.parse_args()
    dice.seed(int(options.seed))
    configuration = QuicConfiguration(
        alpn_protocols=H3_ALPN,
        is_client=True,
        server_name=options.name,
        verify_mode=ssl.CERT_REQUIRED,
    )
    configuration.load_cert_chain(options.certificate, options.key)
    configuration.load_verify_locations(options.authority)
    asyncio.run(work(options, configuration))


dice = random.Random()
main()
