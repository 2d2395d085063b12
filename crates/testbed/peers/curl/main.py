"""libcurl as somebody else's near end of a tunnel: an HTTP client whose proxy is asked over HTTP/3, or HTTP/2.

`main.py speaks` says whether this libcurl can do that; `main.py get|put URL` moves one file. The last
line on standard output tells how it went: libcurl's code, the status and the bytes that came.
"""

import argparse
import sys
import time

from curl_cffi import Curl, CurlError, CurlInfo, CurlOpt

# CURLPROXY_HTTPS3, which curl_cffi has no name for.
HTTPS3 = 8
# By what the proxy is asked; 3 is CURLPROXY_HTTPS2.
KINDS = {"http3": HTTPS3, "http2": 3}
# CURL_WRITEFUNC_ERROR: no more, please.
STOP = 0xFFFFFFFF
# Half a minute: nobody waits for longer.
PATIENCE_S = 30


def speaks():
    """Fails where this libcurl has no proxies that are asked over HTTP/3."""
    curl = Curl()
    print(curl.version().decode())
    try:
        curl.setopt(CurlOpt.PROXYTYPE, HTTPS3)
        curl.setopt(CurlOpt.PROXY, b"https://127.0.0.1:9")
        curl.setopt(CurlOpt.URL, b"http://127.0.0.1:9/")
        curl.setopt(CurlOpt.HTTPPROXYTUNNEL, 1)
        curl.setopt(CurlOpt.TIMEOUT_MS, 200)
        curl.perform()
    except CurlError as error:
        # Not supported, or not built in; whatever else it says, it has tried.
        if error.code in (1, 4, 43, 48):
            sys.exit(f"this libcurl asks no proxy over HTTP/3: {error}")


def move(options):
    host, _, address = options.proxy.partition("@")
    name, _, port = host.partition(":")
    curl = Curl()
    settings = [
        (CurlOpt.URL, options.url),
        (CurlOpt.PROXY, f"https://{name}:{port}"),
        (CurlOpt.PROXYTYPE, KINDS[options.over]),
        (CurlOpt.HTTPPROXYTUNNEL, 1),
        (CurlOpt.RESOLVE, [f"{name}:{port}:{address}"]),
        (CurlOpt.PROXY_CAINFO, options.authority),
        # Without this one curl_cffi replaces both by its own.
        (CurlOpt.CAINFO, options.authority),
        (CurlOpt.PROXY_SSLCERT, options.certificate),
        (CurlOpt.PROXY_SSLKEY, options.key),
        (CurlOpt.TIMEOUT_MS, PATIENCE_S * 1000),
        (CurlOpt.BUFFERSIZE, 512 << 10),
    ]
    came = open(options.file, "wb") if options.action == "get" else None
    paused = False

    def take(data):
        nonlocal paused
        if not paused:
            paused = True
            time.sleep(options.wait)
        if came:
            came.write(data)
            if options.stop and came.tell() > options.stop:
                return STOP
        return len(data)

    settings.append((CurlOpt.WRITEFUNCTION, take))
    if options.action == "put":
        content = open(options.file, "rb").read()
        settings += [
            (CurlOpt.UPLOAD, 1),
            (CurlOpt.INFILESIZE_LARGE, len(content)),
            (CurlOpt.READFUNCTION, Reader(content)),
            (CurlOpt.HTTPHEADER, [b"Expect:"]),
        ]
    for option, value in settings:
        curl.setopt(option, value.encode() if isinstance(value, str) else value)
    code, why = 0, ""
    try:
        curl.perform()
    except CurlError as error:
        code, why = error.code, str(error)
    status = curl.getinfo(CurlInfo.RESPONSE_CODE)
    # Its connection, too: the far end is to hear of it now.
    curl.close()
    if came:
        came.close()
    print(f"code={code} status={status} {why}".strip())


class Reader:
    """Gives a file away in pieces."""

    def __init__(self, content):
        self.content, self.at = content, 0

    def __call__(self, size):
        piece = self.content[self.at : self.at + size]
        self.at += len(piece)
        return piece


def main():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("action", choices=("speaks", "get", "put"))
    parser.add_argument("url", nargs="?")
    for name in ("certificate", "key", "authority", "proxy", "file"):
        parser.add_argument(f"-{name}", default="")
    parser.add_argument("-over", choices=KINDS, default="http3")
    # Before what has come is read, once. Unit: seconds.
    parser.add_argument("-wait", type=float, default=0)
    # After so many bytes have come it breaks off.
    parser.add_argument("-stop", type=int, default=0)
    options = parser.parse_args()
    return speaks() if options.action == "speaks" else move(options)


main()
