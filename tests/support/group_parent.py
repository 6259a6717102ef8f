"""A program that starts a group of processes and waits for its own end."""

import os
import signal

from retrytemplate.control.process_group import ProcessGroup

__all__ = ["announce"]


def announce(send):
    send(os.getpid())
    while True:
        signal.pause()


def main():
    with ProcessGroup(announce, count=1) as group:
        [event] = group.poll(60.0)
        print(event.message, flush=True)
        group.poll(60.0)


if __name__ == "__main__":
    main()
