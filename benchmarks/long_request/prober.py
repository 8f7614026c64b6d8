"""Asks `/livez` over one connection until its standard input has a line; prints the seconds of each answer."""

import json
import select
import socket
import sys
import time

PAUSE_S = 0.003


def main() -> None:
    with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        seconds: list[float] = []
        print("begun", flush=True)
        while not select.select([sys.stdin], [], [], PAUSE_S)[0]:
            began_s = time.monotonic()
            connection.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            connection.recv(4096)
            seconds.append(time.monotonic() - began_s)
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
