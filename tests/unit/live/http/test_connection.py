"""One connection and its listener, beside a transport that writes down what is asked of it."""

from __future__ import annotations

import asyncio
import gc
import math
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from patient import Patient

from inferway.live.http.connection import CONTINUE, LINGER_S, LINGERS, PIECE, Connection, Listener
from inferway.live.http.exchange import Exchange, Limits

Run = Callable[[Coroutine[Any, Any, None]], None]
NOW = 100
"""The listener's tick when a client comes: far from 0, so that times do not pass for durations."""


class Transport(asyncio.Transport):
    """Takes what is written; full after `room` bytes, until the client reads."""

    def __init__(self, room: float = math.inf) -> None:
        super().__init__()
        self.room, self.filled = room, 0
        self.protocol: Connection
        self.calls: list[str] = []
        self.pieces: list[bytes] = []
        self.closing = False

    @property
    def written(self) -> bytes:
        return b"".join(self.pieces)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.pieces.append(bytes(data))
        was_full = self.filled > self.room
        self.filled += len(data)
        if not was_full and self.filled > self.room:
            self.protocol.pause_writing()

    def is_read(self) -> None:
        """Have room again, as when the client has read all that is here."""
        self.filled = 0
        self.protocol.resume_writing()

    def is_read_to_the_end(self) -> None:
        for _ in range(100):
            if not self.protocol.unread:
                return
            self.is_read()
        pytest.fail("there is no end")

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.calls.append("close")
        self.closing = True

    def abort(self) -> None:
        self.calls.append("abort")
        self.closing = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.calls.append("eof")

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")


class Port:
    """A listener whose requests wait until a test answers them."""

    def __init__(self, limits: Limits | None = None, **options: Any) -> None:
        self.asked: list[Exchange] = []
        self.errors: list[BaseException] = []
        self.listener = Listener(
            lambda method, target: self.asked.append, self.errors.append, limits, **options
        )
        self.listener.tick = NOW

    def connect(self, room: float = math.inf) -> tuple[Connection, Transport]:
        connection, transport = Connection(self.listener), Transport(room)
        transport.protocol = connection
        connection.connection_made(transport)
        return connection, transport

    def expire(self, connection: Connection, after_s: int) -> None:
        """Look at a connection so long after it came."""
        self.listener.tick = NOW + after_s
        connection.expire()


def request(body: bytes = b"", *lines: bytes) -> bytes:
    head = [b"POST /ask HTTP/1.1", b"Host: h", *lines, b"Content-Length: %d" % len(body)]
    return b"\r\n".join([*head, b"", body])


def bodies(written: bytes) -> list[bytes]:
    """Take the bodies out of answers that follow each other."""
    found = []
    while written:
        head, _, rest = written.partition(b"\r\n\r\n")
        size = int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0])
        found.append(rest[:size])
        written = rest[size:]
    return found


# How many clients there may be, and how they go.


def test_as_many_clients_as_allowed_and_one_more_is_told_to_come_back(run: Run) -> None:
    async def main() -> None:
        port = Port(Limits(connections=2))
        welcome = [port.connect()[1] for _ in range(2)]
        _, beyond = port.connect()
        assert [one.written for one in welcome] == [b"", b""]
        assert beyond.written.startswith(b"HTTP/1.1 503 ")
        assert b"Retry-After: 1\r\n" in beyond.written
        assert beyond.calls == ["eof"]
        assert len(port.listener.connections) == 2

    run(main())


def test_a_client_that_comes_while_the_listener_closes_is_cut_off() -> None:
    port = Port()
    port.listener.close()
    assert port.connect()[1].calls == ["abort"]


def test_closing_ends_idle_clients_now_and_others_with_their_last_answer() -> None:
    port = Port()
    (_, idle), (busy, waiting) = port.connect(), port.connect()
    busy.data_received(request() * 2)
    port.listener.close()
    assert (idle.calls, waiting.calls) == (["close"], [])
    port.asked[0].respond(200, b"1")
    assert waiting.calls == []
    port.asked[1].respond(200, b"2")
    assert waiting.calls == ["close"]
    assert bodies(waiting.written) == [b"1", b"2"]
    assert waiting.written.count(b"Connection: close\r\n") == 1


def test_of_a_client_that_has_gone_nothing_is_kept_or_counted() -> None:
    port = Port()
    connection, transport = port.connect()
    withdrawn: list[Any] = []
    connection.data_received(request(b"whole"))
    port.asked[0].request, port.asked[0].withdraw = "its request", withdrawn.append
    connection.data_received(request(b"in pieces")[:-2])
    assert port.listener.bodies.held == len(b"whole") + len(b"in piec")
    connection.connection_lost(None)
    assert port.listener.bodies.held == 0
    assert port.listener.connections == set()
    assert withdrawn == ["its request"]
    # An answer that comes too late is nobody's.
    port.asked[0].respond(200, bytes(5000))
    assert (connection.unread, port.listener.unread, port.listener.bodies.held) == (0, 0, 0)
    assert transport.written == b""


@pytest.mark.parametrize("came", [b"POST /a", request(b"body")[:-1]], ids=["head", "body"])
def test_a_client_that_goes_amid_a_request_leaves_nothing_to_the_garbage_collector(
    came: bytes,
) -> None:
    connection = Connection(Port().listener)
    connection.connection_made(Transport())
    connection.data_received(came)
    gone = weakref.ref(connection)
    was_on = gc.isenabled()
    gc.disable()
    try:
        connection.connection_lost(None)
        del connection
        assert gone() is None
    finally:
        if was_on:
            gc.enable()


# Times, in ticks.

TIMES = Limits(receive_s=5, idle_s=7, read_rate=PIECE)


def test_an_unused_connection_is_closed_when_it_is_idle_for_too_long() -> None:
    port = Port(TIMES)
    connection, transport = port.connect()
    port.expire(connection, 7)
    assert transport.calls == []
    # It counts from what has come last, and not while somebody works on an answer.
    connection.data_received(request())
    port.expire(connection, 50)
    assert transport.calls == []
    port.asked[0].respond(200)
    connection.data_received(request())
    port.asked[1].respond(200)
    port.expire(connection, 57)
    assert transport.calls == []
    port.expire(connection, 58)
    assert transport.calls == ["close"]


def test_a_request_arrives_in_time_or_is_refused(run: Run) -> None:
    async def main() -> None:
        port = Port(TIMES)
        connection, transport = port.connect()
        port.listener.tick = NOW + 3
        connection.data_received(request(b"body")[:-2])
        port.expire(connection, 7)
        connection.data_received(b"d")  # which is no new beginning
        port.expire(connection, 8)
        assert transport.pieces == []
        port.expire(connection, 9)
        assert transport.written.startswith(b"HTTP/1.1 408 ")
        assert transport.calls == ["eof"]
        assert port.listener.bodies.held == 0

    run(main())


def test_a_client_that_reads_nothing_is_cut_off() -> None:
    port = Port(TIMES)
    connection, transport = port.connect(room=0)
    port.listener.tick = NOW + 2
    connection.data_received(request())
    port.asked[0].respond(200, bytes(3 * PIECE))
    port.expire(connection, 7)
    assert transport.calls == ["pause"]
    port.expire(connection, 8)
    assert transport.calls == ["pause", "abort"]
    assert (connection.unread, port.listener.unread) == (0, 0)


def test_a_client_that_reads_slowly_has_time_by_what_it_is_to_read() -> None:
    port = Port(TIMES)
    connection, transport = port.connect(room=0)
    connection.data_received(request())
    port.asked[0].respond(200, bytes(8 * PIECE))  # eight seconds and a little, beyond the five
    for after_s in (4, 8, 12):
        port.expire(connection, after_s)
        transport.is_read()
    port.expire(connection, 13)
    assert transport.calls == ["pause"]
    port.expire(connection, 14)
    assert transport.calls == ["pause", "abort"]


def test_a_connection_whose_answer_is_being_read_is_not_idle() -> None:
    port = Port(TIMES)
    connection, transport = port.connect(room=0)
    connection.data_received(request())
    port.asked[0].respond(200, bytes(3 * PIECE))
    for after_s in (2, 5, 8):
        port.expire(connection, after_s)
        assert transport.calls == ["pause"]
        transport.is_read()
    assert bodies(transport.written) == [bytes(3 * PIECE)]
    transport.is_read()
    port.expire(connection, 9)
    assert transport.calls == ["pause", "resume", "close"]


def test_whoever_has_read_all_begins_anew() -> None:
    port = Port(TIMES)
    connection, transport = port.connect(room=0)
    for begun in (0, 10, 20):
        port.listener.tick = NOW + begun
        connection.data_received(request())
        port.asked[-1].respond(200, bytes(2 * PIECE))
        for _ in range(3):
            port.expire(connection, begun + 5)
            transport.is_read()
        assert connection.unread == 0
    assert "abort" not in transport.calls
    assert bodies(transport.written) == [bytes(2 * PIECE)] * 3


def test_the_last_bytes_of_a_closed_connection_may_never_be_read() -> None:
    port = Port(TIMES)
    connection, transport = port.connect()
    port.listener.tick = NOW + 2
    connection.drain()
    connection.drain()
    port.expire(connection, 7)
    assert "abort" not in transport.calls
    port.expire(connection, 8)
    assert transport.calls[-1] == "abort"


def test_a_refused_client_may_go_on_sending_for_a_while(run: Run, patient: Patient) -> None:
    async def main() -> None:
        port = Port()
        (silent, first), (sending, second) = port.connect(), port.connect()
        for connection in (silent, sending):
            connection.data_received(b"no HTTP\r\n\r\n")
        for _ in range(LINGERS):
            assert second.calls == ["eof"]
            sending.data_received(b"more")
            await patient.let(LINGER_S)
            assert first.calls == ["eof", "close"]
        assert second.calls == ["eof", "close"]
        assert second.written.count(b"HTTP/1.1 400 ") == 1

    run(main())


def test_a_client_too_many_may_not_go_on_for_long(run: Run, patient: Patient) -> None:
    async def main() -> None:
        port = Port(Limits(connections=0))
        connection, transport = port.connect()
        connection.data_received(request())
        await patient.let(LINGER_S)
        assert transport.calls == ["eof", "close"]
        assert port.asked == []

    run(main())


# Answers that wait.


def test_a_large_answer_is_written_in_pieces_and_counts_until_its_last_has_gone() -> None:
    port = Port()
    connection, transport = port.connect(room=0)
    connection.data_received(request())
    port.asked[0].respond(200, bytes(2 * PIECE))
    whole = connection.unread
    assert 2 * PIECE < whole < 3 * PIECE
    for pieces in (1, 2):
        assert [len(one) for one in transport.pieces] == [PIECE] * pieces
        assert (connection.unread, port.listener.unread) == (whole, whole)
        transport.is_read()
    assert [len(one) for one in transport.pieces] == [PIECE, PIECE, whole - 2 * PIECE]
    assert (connection.unread, port.listener.unread) == (0, 0)
    assert bodies(transport.written) == [bytes(2 * PIECE)]


def test_each_answer_that_waits_counts_for_itself() -> None:
    port = Port()
    connection, transport = port.connect(room=0)
    connection.data_received(request() * 2)
    port.asked[0].respond(200, b"a" * PIECE)
    first = connection.unread
    port.asked[1].respond(200, b"b" * (PIECE + 1000))
    second = connection.unread - first
    transport.is_read()
    assert connection.unread == port.listener.unread == second > PIECE + 1000
    transport.is_read_to_the_end()
    assert port.listener.unread == 0
    assert bodies(transport.written) == [b"a" * PIECE, b"b" * (PIECE + 1000)]


def test_small_answers_wait_too_while_the_client_reads_none() -> None:
    port = Port()
    connection, transport = port.connect(room=0)
    connection.data_received(request() * 2)
    port.asked[0].respond(200, b"1")
    assert connection.unread == 0
    port.asked[1].respond(200, b"2")
    assert connection.unread > 0
    assert bodies(transport.written) == [b"1"]
    transport.is_read()
    assert connection.unread == 0
    assert bodies(transport.written) == [b"1", b"2"]


def test_answers_go_in_the_order_of_their_requests() -> None:
    port = Port()
    connection, transport = port.connect()
    connection.data_received(request(b"x") * 4)
    port.asked[2].respond(200, b"3")
    third = connection.unread
    port.asked[1].respond(200, b"2")
    assert connection.unread == port.listener.unread > third > 0
    assert (transport.pieces, port.listener.bodies.held) == ([], 2)
    port.asked[0].respond(200, b"1")
    assert len(transport.pieces) == 1
    assert (connection.unread, port.listener.unread) == (0, 0)
    port.asked[3].respond(200, b"4")
    assert bodies(transport.written) == [b"1", b"2", b"3", b"4"]
    assert port.listener.bodies.held == 0


def test_what_too_much_waits_before_is_dropped_and_said_to_be() -> None:
    port = Port(Limits(queued_bytes=2 * PIECE))
    connection, transport = port.connect(room=0)
    connection.data_received(request() * 4)
    port.asked[0].respond(200, bytes(PIECE))
    waiting = connection.unread
    port.asked[1].respond(200, bytes(PIECE))
    port.asked[2].respond(200, bytes(1000))  # small ones always have a place
    port.asked[3].respond(200, bytes(3000))
    transport.is_read_to_the_end()
    first, dropped, *others = bodies(transport.written)
    assert first == bytes(PIECE)
    assert f"{waiting} bytes of answers of this connection wait to be read".encode() in dropped
    assert others == [bytes(1000), bytes(3000)]


def test_a_connection_closes_when_its_last_answer_has_been_written() -> None:
    port = Port()
    connection, transport = port.connect(room=0)
    connection.data_received(request(b"", b"Connection: close") + request())
    assert len(port.asked) == 1  # what follows was not asked for
    port.asked[0].respond(200, bytes(PIECE))
    assert "close" not in transport.calls
    transport.is_read()
    assert transport.calls[-1] == "close"
    assert bodies(transport.written) == [bytes(PIECE)]


def test_whoever_has_left_most_unread_is_cut_off_where_all_have_left_too_much() -> None:
    port = Port(Limits(bodies_bytes=5 * PIECE))
    (one, little), (two, much) = port.connect(room=0), port.connect(room=0)
    for connection in (one, two):
        connection.data_received(request())
    # One answer may be larger.
    port.asked[1].respond(200, bytes(6 * PIECE))
    assert "abort" not in much.calls
    port.asked[0].respond(200, bytes(PIECE))
    assert ("abort" in little.calls, "abort" in much.calls) == (False, True)
    assert port.listener.unread == one.unread > PIECE


# Requests that wait.


def test_reading_pauses_once_while_many_wait_and_goes_on_at_half_as_many() -> None:
    port = Port(Limits(pipelined=4))
    connection, transport = port.connect()
    connection.data_received(request() * 4)
    assert transport.calls == []
    connection.data_received(request() * 2)
    assert transport.calls == ["pause"]
    for place in range(3):
        port.asked[place].respond(200)
        assert transport.calls == ["pause"]
    for place in range(3, 6):
        port.asked[place].respond(200)
        assert transport.calls == ["pause", "resume"]


def test_reading_pauses_while_much_waits() -> None:
    port = Port(Limits(queued_bytes=10))
    connection, transport = port.connect()
    connection.data_received(request(bytes(10)))
    assert transport.calls == []
    connection.data_received(request(bytes(1)))
    assert transport.calls == ["pause"]
    port.asked[0].respond(200)
    assert transport.calls == ["pause", "resume"]
    # What a body unpacks to counts too, as far as there is room.
    assert connection.grow(port.asked[1], 10)
    connection.handle(port.asked[1])
    assert transport.calls == ["pause", "resume", "pause"]
    assert not connection.grow(port.asked[1], port.listener.bodies.limit)
    assert (port.listener.bodies.held, port.listener.bodies.refused) == (11, 1)
    port.asked[1].respond(200)
    assert port.listener.bodies.held == 0


def test_a_transport_that_closes_is_not_asked_to_read_or_to_pause() -> None:
    port = Port()
    connection, transport = port.connect()
    connection.drain()
    connection.pause_writing()
    connection.resume_writing()
    assert transport.calls == ["close"]


def test_a_client_that_does_not_read_is_not_read_from() -> None:
    port = Port()
    connection, transport = port.connect(room=0)
    connection.data_received(request())
    port.asked[0].respond(200, bytes(2 * PIECE))
    assert transport.calls == ["pause"]
    transport.is_read()
    assert transport.calls == ["pause"]  # its buffer is full again
    transport.is_read()
    transport.is_read()
    assert transport.calls == ["pause", "resume"]


def test_a_body_is_asked_for_when_the_answers_before_it_have_gone() -> None:
    port = Port()
    connection, transport = port.connect()
    head = request(b"body", b"Expect: 100-continue")[:-4]
    connection.data_received(head)
    assert transport.pieces == [CONTINUE]
    connection.data_received(b"body" + head)
    assert transport.pieces == [CONTINUE]
    port.asked[0].respond(200, b"1")
    assert transport.written.endswith(b"1" + CONTINUE)
    connection.data_received(b"body")
    port.asked[1].respond(200, b"2")
    assert transport.written.count(CONTINUE) == 2
    assert [one.method for one in port.asked] == [b"POST"] * 2


# What is refused.


@pytest.mark.parametrize(
    ("limits", "came", "status"),
    [
        (Limits(head_bytes=100), b"POST /" + b"a" * 100 + b" HTTP/1.1\r\n", b"414"),
        (Limits(head_bytes=100), request(b"", b"Host-Of: " + b"a" * 100), b"431"),
        (Limits(body_bytes=3), request(b"body"), b"413"),
        (Limits(bodies_bytes=3), request(b"body"), b"413"),
        (Limits(json_bytes=3), request(b"body"), b"413"),
        (None, request(b"", b"Host: i"), b"400"),
        (None, b"CONNECT h:1 HTTP/1.1\r\nHost: h\r\n\r\n", b"405"),
        (None, b"POST / HTTP/1.1\r\n\r\n", b"400"),
    ],
)
def test_refusals_end_the_connection_and_hold_nothing(
    run: Run, limits: Limits | None, came: bytes, status: bytes
) -> None:
    async def main() -> None:
        port = Port(limits)
        connection, transport = port.connect()
        connection.data_received(came)
        connection.data_received(request())
        assert transport.written.startswith(b"HTTP/1.1 %b " % status)
        assert transport.calls == ["eof"]
        assert len(bodies(transport.written)) == 1
        assert (port.asked, port.errors, port.listener.bodies.held) == ([], [], 0)

    run(main())


def test_a_refusal_waits_for_the_answers_before_it_and_nothing_follows(run: Run) -> None:
    async def main() -> None:
        port = Port()
        connection, transport = port.connect()
        connection.data_received(request() + b"no HTTP\r\n\r\n")
        for _ in range(2):
            connection.data_received(request() + b"no HTTP\r\n\r\n")
        assert (len(port.asked), transport.pieces) == (1, [])
        port.asked[0].respond(200, b"1")
        first, *refusals = bodies(transport.written)
        assert (first, len(refusals)) == (b"1", 1)
        assert b"malformed HTTP" in refusals[0]
        assert transport.calls == ["eof"]

    run(main())


@pytest.mark.parametrize(
    "limits",
    [
        Limits(head_bytes=len(b"/askHosthContent-Length4")),
        Limits(body_bytes=4),
        Limits(bodies_bytes=4),
        Limits(json_bytes=4),
    ],
)
@pytest.mark.parametrize("pieces", [1, 4])
def test_what_just_keeps_the_limits_is_taken(limits: Limits, pieces: int) -> None:
    port = Port(limits)
    connection, transport = port.connect()
    came = request(b"body")
    size = -(-len(came) // pieces)
    for start in range(0, len(came), size):
        connection.data_received(came[start : start + size])
    assert [one.body for one in port.asked] == [b"body"]
    assert port.listener.bodies.held == 4
    port.asked[0].respond(200)
    assert transport.written.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "limits",
    [
        Limits(bodies_bytes=6),
        Limits(bodies_bytes=6, body_bytes=4),
        Limits(bodies_bytes=6, json_bytes=4),
        Limits(bodies_bytes=4),
    ],
)
def test_a_body_for_which_others_leave_no_room_is_refused_for_now(run: Run, limits: Limits) -> None:
    async def main() -> None:
        port = Port(limits)
        (one, _), (two, transport) = port.connect(), port.connect()
        one.data_received(request(b"body"))
        two.data_received(request(b"body"))
        assert transport.written.startswith(b"HTTP/1.1 503 ")
        assert b"Retry-After: 1\r\n" in transport.written
        assert b"Inferway-Unserved" not in transport.written
        assert (port.listener.bodies.held, port.listener.bodies.refused) == (4, 1)

    run(main())


def test_a_handler_that_fails_is_told_of_and_its_client_answered(run: Run) -> None:
    async def main() -> None:
        port = Port()

        def fail(exchange: Exchange) -> None:
            raise KeyError("broken")

        port.listener.find = lambda method, target: fail
        connection, transport = port.connect()
        connection.data_received(request(b"body"))
        assert transport.written.startswith(b"HTTP/1.1 500 ")
        assert transport.calls == ["eof"]
        assert [type(error) for error in port.errors] == [KeyError]
        assert port.listener.bodies.held == 0

    run(main())
