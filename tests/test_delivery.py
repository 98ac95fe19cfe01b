"""Notifications over a real SMTP server and real HTTP, and the addresses that webhooks must not reach."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import multiprocessing
import os
import random
import signal
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from aiosmtpd.controller import Controller

from penstock import testing
from penstock.contract import notifications
from penstock.delivery import Sender, addresses, email, webhook
from penstock.errors import Invalid
from penstock.postgres import db as database
from penstock.settings import Settings
from penstock.types import TakenNotification

SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()


def note(address: str, channel: Any = "webhook", **values: Any) -> TakenNotification:
    made = {
        "id": uuid.uuid4(), "tenant_id": uuid.uuid4(), "target_id": uuid.uuid4(), "channel": channel,
        "address": address, "event": "alert", "subject": "3 failures in a row", "body": "It failed.",
        "details": {"scope": "event:1"}, "attempt": 1, "created_at": datetime.now(UTC), "secrets": [SECRET],
    }  # fmt: skip
    return TakenNotification(**(made | values))


class Mailbox:
    """A real SMTP server that keeps what it accepts."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.responses: list[str] = []
        """Responses to the next RCPT commands; then everybody is accepted."""
        self.seconds = 0.0
        """How long it takes to accept a message."""

    async def handle_RCPT(self, server: Any, session: Any, envelope: Any, address: str, options: Any) -> str:
        response = self.responses.pop(0) if self.responses else "250 OK"
        if response.startswith("250"):
            envelope.rcpt_tos.append(address)
        return response

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        await asyncio.sleep(self.seconds)
        self.messages.append(envelope.content.decode())
        return "250 OK"


@pytest.fixture
def mailbox() -> Iterator[tuple[Mailbox, str]]:
    box = Mailbox()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    controller = Controller(box, hostname="127.0.0.1", port=port)
    controller.start()
    yield box, f"smtp://127.0.0.1:{port}?tls=none"
    controller.stop()


class Hook:
    """A web server that records requests and responds with the given statuses."""

    def __init__(self) -> None:
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.statuses: list[int] = []
        self.headers: dict[str, str] = {}
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                hook.requests.append(({k.lower(): v for k, v in self.headers.items()}, body))
                self.send_response(hook.statuses.pop(0) if hook.statuses else 200)
                for name, value in hook.headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", "2")
                self.end_headers()
                self.wfile.write(b"ok")

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/hook"


@pytest.fixture
def hook() -> Iterator[Hook]:
    made = Hook()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


# E-mail


async def test_a_streak_of_failures_becomes_one_mail(
    db: testing.Database, tenant: uuid.UUID, mailbox: tuple[Mailbox, str]
) -> None:
    """R4.5/alert: through a real SMTP server, one mail for the streak, a second for the next one."""
    box, url = mailbox
    async with database.pool(db.dsn) as pool:
        sender = Sender(pool, Settings(smtp_url=url, mail_from="Penstock <penstock@example.com>"))
        await notifications.set_target(pool, channel="email", address="ann@example.com", tenant_id=tenant)
        for is_success in (False, False, False, False, True, False, False, False):
            failure: dict[str, Any] = (
                {} if is_success else {"code": "api_error", "message": "it responded <b>500</b>"}
            )
            await notifications.record_outcome(
                pool, tenant_id=tenant, scope="event:7", is_success=is_success, **failure
            )
            await sender.once()
        listed = await notifications.list(pool, tenant_id=tenant)
    assert [each.status for each in listed] == ["sent", "sent"]
    assert len(box.messages) == 2
    first = box.messages[0]
    assert "Subject: 3 failures in a row: event:7" in first and "Auto-Submitted: auto-generated" in first
    assert f"Message-ID: <{listed[-1].id}@example.com>" in first
    assert "<p>" in first and "&lt;b&gt;500&lt;/b&gt;" in first


async def test_a_message_sent_again_keeps_its_id(mailbox: tuple[Mailbox, str]) -> None:
    """A sender killed after DATA sends again: mail programs show the two as one."""
    box, url = mailbox
    mail, chosen = email.server(url, "penstock@example.com"), note("ann@example.com", "email")
    for _ in range(2):
        assert (await email.send(chosen, mail)).result == "sent"
    ids = {line for text in box.messages for line in text.splitlines() if line.startswith("Message-ID")}
    assert len(box.messages) == 2 and len(ids) == 1


def kill_senders(dsn: str, url: str, kills: int) -> None:
    """Start senders one after the other, in processes, and kill each (SIGKILL) at some moment of its work."""
    chance = random.Random(7)
    settings = Settings(smtp_url=url, mail_from="penstock@example.com")

    async def send(begun: int) -> None:
        async with database.pool(dsn, max_size=3) as pool:
            sender = Sender(pool, settings)
            sender.BATCH = 2
            os.write(begun, b".")
            while True:
                await sender.once()

    # On a busy machine a sender needs longer to connect than it would live.
    has_begun, begun = os.pipe()
    for _ in range(kills):
        if (child := os.fork()) == 0:
            asyncio.run(send(begun))
        os.read(has_begun, 1)
        time.sleep(chance.uniform(0.005, 0.1))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with database.connect(dsn) as conn:
            # The lease of a message whose sender died expires.
            conn.execute("update penstock_test.clock set shift = shift + interval '2 minutes'")


@pytest.mark.slow
async def test_no_mail_is_lost_over_50_kills_of_the_sender(
    db: testing.Database, tenant: uuid.UUID, mailbox: tuple[Mailbox, str], clock: testing.Clock
) -> None:
    """R4.5/alert: 25 streaks of 20 failures at once. Each has one mail, however often the sender dies."""
    box, url = mailbox
    box.seconds = 0.02
    async with database.pool(db.dsn, max_size=10) as pool:
        await notifications.set_target(pool, channel="email", address="ann@example.com", tenant_id=tenant)
        for streak in range(25):
            fail = {"tenant_id": tenant, "scope": f"event:{streak}", "is_success": False}
            await asyncio.gather(
                *(notifications.record_outcome(pool, **fail, code="x", message="y") for _ in range(20))
            )
        # Forks, so it needs a process without threads.
        killer = multiprocessing.get_context("spawn").Process(target=kill_senders, args=(db.dsn, url, 50))
        await asyncio.to_thread(killer.start)
        await asyncio.to_thread(killer.join)
        assert killer.exitcode == 0
        settings = Settings(smtp_url=url, mail_from="penstock@example.com")
        while any(each.status != "sent" for each in await notifications.list(pool, tenant_id=tenant)):
            clock.advance(minutes=2)
            await Sender(pool, settings).once()
        listed = await notifications.list(pool, tenant_id=tenant, limit=100)
    ids = [line for text in box.messages for line in text.splitlines() if line.startswith("Message-ID")]
    assert len(listed) == 25 and set(ids) == {f"Message-ID: <{each.id}@example.com>" for each in listed}
    [row] = db.execute("select sum(attempts)::int as n from penstock.notifications")
    assert row["n"] > 30, "the senders died while they were sending"


async def test_temporary_refusals_are_retried_and_final_ones_are_not(mailbox: tuple[Mailbox, str]) -> None:
    box, url = mailbox
    mail = email.server(url, "penstock@example.com")
    box.responses = ["450 busy", "550 no such user"]
    results = [(await email.send(note("ann@example.com", "email"), mail)).result for _ in range(3)]
    assert results == ["retry", "failed", "sent"]


async def test_a_mail_server_that_is_away_is_retried() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    mail = email.server(f"smtp://127.0.0.1:{port}?tls=none", "penstock@example.com")
    assert (await email.send(note("ann@example.com", "email"), mail)).result == "retry"


async def test_a_mail_server_that_hangs_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(email, "_TIMEOUT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        mail = email.server(f"smtp://127.0.0.1:{silent.getsockname()[1]}?tls=none", "penstock@example.com")
        assert (await email.send(note("ann@example.com", "email"), mail)).result == "retry"


async def test_headers_cannot_be_injected(mailbox: tuple[Mailbox, str]) -> None:
    """S49"""
    box, url = mailbox
    mail = email.server(url, "penstock@example.com")
    chosen = note("ann@example.com", "email", subject="hello\r\nBcc: eve@example.com")
    assert (await email.send(chosen, mail)).result == "sent"
    assert "\r\nBcc:" not in box.messages[0]
    bad = note("ann@example.com\r\nBcc: eve@example.com", "email")
    assert (await email.send(bad, mail)).result == "failed"


async def test_without_a_mail_server_a_message_waits_with_the_reason(
    db: testing.Database, tenant: uuid.UUID
) -> None:
    async with database.pool(db.dsn) as pool:
        made = await notifications.set_target(
            pool, channel="email", address="ann@example.com", tenant_id=tenant
        )
        await notifications.send_test(pool, target_id=made.id)
        await Sender(pool, Settings()).once()
        [listed] = await notifications.list(pool, tenant_id=tenant)
    assert listed.status == "queued" and "PENSTOCK_SMTP_URL" in (listed.last_error or "")


@pytest.mark.parametrize(
    ("url", "sender"),
    [
        ("http://host", "a@b.example"),
        ("smtp://", "a@b.example"),
        ("smtp://h?tls=maybe", "a@b.example"),
        ("smtp://h", "nobody"),
    ],
)
def test_a_bad_mail_server_url_is_rejected(url: str, sender: str) -> None:
    with pytest.raises(Invalid):
        email.server(url, sender)


# Webhooks


async def test_a_webhook_is_signed_as_standard_webhooks_prescribe(hook: Hook) -> None:
    chosen = note(hook.url)
    assert (await webhook.send(chosen, allow_private=True)).result == "sent"
    [(headers, body)] = hook.requests
    expected = webhook.signature(SECRET, str(chosen.id), int(headers["webhook-timestamp"]), body)
    assert headers["webhook-signature"] == expected and headers["webhook-id"] == str(chosen.id)
    assert json.loads(body)["type"] == "alert"
    # The example of the specification, computed with its own key.
    example = webhook.signature(
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        1614265330,
        b'{"test": 2432232314}',
    )
    assert example == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


async def test_both_secrets_sign_after_a_rotation(hook: Hook) -> None:
    chosen = note(hook.url, secrets=[SECRET, "whsec_" + base64.b64encode(b"o" * 32).decode()])
    await webhook.send(chosen, allow_private=True)
    assert len(hook.requests[0][0]["webhook-signature"].split(" ")) == 2


@pytest.mark.parametrize(
    ("status", "result"), [(204, "sent"), (410, "gone"), (429, "retry"), (500, "retry"), (404, "failed")]
)
async def test_the_response_decides_what_happens_next(hook: Hook, status: int, result: str) -> None:
    hook.statuses = [status]
    assert (await webhook.send(note(hook.url), allow_private=True)).result == result


async def test_a_redirect_is_not_followed(hook: Hook) -> None:
    """S31"""
    hook.statuses, hook.headers = [302], {"location": hook.url}
    assert (await webhook.send(note(hook.url), allow_private=True)).result == "failed"
    assert len(hook.requests) == 1


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n" + b"x" * 1000, "sent"),
        (b"HTTP/1.1 200 OK\r\nx-endless: ", "retry"),
    ],
)
async def test_an_endless_response_ends(answer: bytes, result: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """S34: the receiver sends one byte after the other, each in time."""
    monkeypatch.setattr(webhook, "_TIMEOUT_SECONDS", 0.5)
    monkeypatch.setattr(webhook, "_BODY_SECONDS", 0.2)

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        with suppress(ConnectionError, asyncio.CancelledError):
            while not writer.is_closing():
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.02)
        writer.close()

    async with await asyncio.start_server(drip, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        began = time.monotonic()
        assert (await webhook.send(note(url), allow_private=True)).result == result
        assert time.monotonic() - began < 3


async def test_faulty_webhooks_do_not_delay_healthy_ones(
    db: testing.Database, hook: Hook, eventually: Any
) -> None:
    """Of 51 targets of three tenants every third never answers, refuses the connection, or fails."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nobody = f"http://127.0.0.1:{closed.getsockname()[1]}"
    settings = Settings(allow_private_webhooks=True)
    async with database.pool(db.dsn) as pool:
        with socket.create_server(("127.0.0.1", 0), backlog=50) as silent:
            faulty = itertools.cycle([f"http://127.0.0.1:{silent.getsockname()[1]}", nobody])
            for number in range(51):
                [row] = db.execute("select penstock.ensure_tenant(%s) as id", [f"tenant {number // 17}"])
                address = f"{next(faulty)}/{number}" if number % 3 == 0 else f"{hook.url}/{number}"
                made = await notifications.set_target(
                    pool, channel="webhook", address=address, tenant_id=row["id"]
                )
                await notifications.send_test(pool, target_id=made.id)
            sender = Sender(pool, settings)
            sender.due.set()
            began = time.monotonic()
            running = asyncio.create_task(sender.run())
            await eventually.aio(lambda: len(hook.requests) == 34)
            took = time.monotonic() - began
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
    assert took < 5, "a receiver that never answers holds no other message for its 10 seconds"
    [row] = db.execute("select count(*) as n from penstock.notifications where status = 'sent'")
    assert row["n"] <= 34


def test_a_tenant_has_a_share_of_what_is_in_flight(db: testing.Database, tenant: uuid.UUID) -> None:
    """S64: deliveries to receivers that do not answer leave room for other tenants."""
    db.execute(
        "insert into penstock.notifications (tenant_id, channel, address, event, subject, body, next_try_at, "
        "created_at) select %s, 'webhook', 'https://example.com', 'alert', 'x', 'y', penstock._now(), "
        "penstock._now() from generate_series(1, 30)",
        [tenant],
    )
    taken = [len(db.execute("select * from penstock.take_notifications(20)")) for _ in range(2)]
    assert taken == [10, 0]


async def test_the_checked_address_is_the_one_that_is_connected_to(hook: Hook) -> None:
    """S31: a name that resolves to a public address for the check and to a private one for the request changes nothing."""
    answers = [["127.0.0.1"], ["10.0.0.1"]]

    async def resolve(host: str, port: int) -> list[str]:
        return answers.pop(0)

    url = hook.url.replace("127.0.0.1", "rebind.example.com")
    assert (await webhook.send(note(url), allow_private=True, resolve=resolve)).result == "sent"
    assert len(answers) == 1, "the name is resolved once"
    assert hook.requests[0][0]["host"].startswith("rebind.example.com:")


# Addresses

PRIVATE = [
    *("127.0.0.1", "127.0.0.2", "127.1.2.3", "127.255.255.254", "0.0.0.1", "0.1.2.3", "10.0.0.1", "10.255.255.255"),
    *("172.16.0.1", "172.20.1.1", "172.31.255.255", "192.168.0.1", "192.168.255.255", "169.254.0.1"),
    *("169.254.169.254", "100.64.0.1", "100.100.100.200", "100.127.255.255", "192.0.0.1", "192.0.0.192"),
    *("192.0.2.1", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255"),
    *("240.0.0.1", "250.1.2.3", "255.255.255.255", "::", "::1", "::2", "fc00::1", "fd00::1", "fd12:3456:789a::1"),
    *("fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1", "ff0e::1", "2001:db8::1", "100::1", "2001::1", "2001:10::1"),
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::ffff:0:0", "::ffff:7f00:1"),
    *("::127.0.0.1", "::10.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a00:1", "64:ff9b::169.254.169.254"),
    *("64:ff9b:1::1", "2002:7f00:1::1", "2002:a00:1::1", "2002:a9fe:a9fe::1", "2002:c0a8:1::1"),
    *("2001:0:7f00:1::", "fd00:ec2::254", "::ffff:192.168.1.1", "::ffff:100.64.0.1", "not an address", ""),
]  # fmt: skip
SPELLINGS = [
    *("http://127.1/", "http://127.0.1/", "http://0/", "http://0.0.0.0/", "http://2130706433/", "http://017700000001/"),
    *("http://0x7f000001/", "http://0x7f.0.0.1/", "http://0x7f.1/", "http://0177.0.0.1/", "http://127.0.0.1./"),
    *("http://localhost/", "http://localhost./", "http://LOCALHOST/", "http://[::1]/", "http://[::]/"),
    *("http://[::ffff:127.0.0.1]/", "http://[::ffff:7f00:1]/", "http://[0:0:0:0:0:0:0:1]/", "http://[::127.0.0.1]/"),
    *("http://169.254.169.254/latest/meta-data/", "http://[fd00:ec2::254]/", "http://0xa9fea9fe/", "http://2852039166/"),
    *("http://0251.0376.0251.0376/", "http://10.0.0.1/", "http://167772161/", "http://0x0a000001/", "http://10.1/"),
    *("http://192.168.0.1/", "http://192.168.1/", "http://3232235521/", "http://172.16.0.1/", "http://100.64.0.1/"),
    *("http://[fe80::1]/", "http://[fc00::1]/", "http://[64:ff9b::7f00:1]/", "http://[2002:7f00:1::]/"),
    *("https://127.0.0.1/", "https://127.0.0.1:8443/", "http://127.0.0.1:8080/", "http://0:8080/", "http://[::]:8080/"),
]  # fmt: skip
MALFORMED = [
    *("", "example.com", "//example.com/", "ftp://example.com/", "file:///etc/passwd", "gopher://example.com/"),
    *("dict://example.com:11211/", "ldap://example.com/", "javascript:alert(1)", "data:text/plain,x", "ws://example.com/"),
    *("HTTP//example.com", "http:///path", "http://", "https://?x", "http://user@example.com/", "http://a:b@example.com/"),
    *("http://example.com@127.0.0.1/", "http://127.0.0.1\\@example.com/", "http://exa mple.com/", "http://example.com/\n"),
    *("http://example.com/\r\nX: y", "http://example.com\t/", "http://example.com\x00/", "http://[::1/", "http://::1/"),
    *("http://example.com:0/", "http://example.com:22/", "http://example.com:25/", "http://example.com:53/"),
    *("http://example.com:110/", "http://example.com:143/", "http://example.com:445/", "http://example.com:2375/"),
    *("http://example.com:3306/", "http://example.com:5432/", "http://example.com:6379/", "http://example.com:99999/"),
    *("http://example.com:-1/", "http://example.com:x/", "http://%31%32%37.0.0.1/", "http://[fe80::1%25eth0]/"),
    *("http://example.com\\.evil.com/", " http://example.com/", "http://example.com/ "),
]  # fmt: skip


def test_private_addresses_are_recognized() -> None:
    """S31"""
    assert [text for text in PRIVATE if addresses.is_public(text)] == []
    public = ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "2a00:1450:4001::1"]
    assert [text for text in public if not addresses.is_public(text)] == []


async def test_no_url_of_the_corpus_is_requested() -> None:
    """S31, R4.5/alert: at least 150 ways to reach what a webhook must not reach."""

    async def resolve(host: str, port: int) -> list[str]:
        # The C library's reading of odd spellings; the example's name is public.
        if host == "example.com":
            return ["93.184.216.34"]
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return [str(entry[4][0]) for entry in found]

    passed: list[str] = []
    for url in (*SPELLINGS, *MALFORMED):
        try:
            passed.append(str(await addresses.check(url, resolve=resolve)))
        except (addresses.Refused, LookupError):
            continue
    assert passed == []
    for private in PRIVATE:
        with pytest.raises((addresses.Refused, LookupError)):
            await addresses.check("https://name.example.com/", resolve=_always(private))
    assert len(SPELLINGS) + len(MALFORMED) + len(PRIVATE) >= 150


async def test_one_private_address_among_public_ones_is_enough_to_refuse() -> None:
    """S31"""
    with pytest.raises(addresses.Refused, match="not public"):
        await addresses.check("https://example.com/", resolve=_always("1.1.1.1", "10.0.0.1"))


async def test_a_public_name_passes() -> None:
    found = await addresses.check("https://example.com/a?b=c", resolve=_always("93.184.216.34"))
    assert (found.url, found.host_header) == ("https://93.184.216.34:443/a?b=c", "example.com")
    other = await addresses.check("http://example.com:8080/", resolve=_always("2606:4700::1111"))
    assert (other.url, other.host_header) == ("http://[2606:4700::1111]:8080/", "example.com:8080")


def _always(*found: str) -> addresses.Resolve:
    async def resolve(host: str, port: int) -> list[str]:
        return list(found)

    return resolve
