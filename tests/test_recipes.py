"""The programs of the recipes, run as processes, against real servers and databases."""

import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing, contextmanager
from pathlib import Path
from runpy import run_path

import httpx
import pytest
from sqlalchemy import create_engine, insert, select, text, update

from retrytemplate.testing import VirtualClock
from tests.support import forked_python
from tests.support.http_service import SILENCE, Server, Shop
from tests.support.polling import wait_until
from tests.support.redis_streams import RedisStream

pytestmark = pytest.mark.documentation

ROOT = Path(__file__).resolve().parent.parent
FILE = re.compile(r"```python\n(# file: (\S+)\n.*?)```", re.DOTALL)


class Upstream(Shop):
    """The server that a recipe calls; it keeps the headers of the requests."""

    def answer(self):
        self.server.headers.append((self.path, dict(self.headers)))
        super().answer()

    do_GET = do_POST = answer


@pytest.fixture
def upstream():
    """A server with a list of answers for each path; it answers any other request with 404."""
    with Server(("127.0.0.1", 0), Upstream) as server:
        server.scripts, server.headers = {}, []
        server.url = f"http://127.0.0.1:{server.server_port}"
        server.script = lambda path, *answers: server.scripts.update(
            {path: (VirtualClock(), list(answers), [])}
        )
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def sent(server, path, name):
    """The values of a header in the requests for a path, in their order."""
    return [headers.get(name) for each, headers in server.headers if each == path]


class Recipe:
    """The files of a page in a folder, and their processes."""

    def __init__(self, page, folder):
        page = (ROOT / "docs" / "recipes" / page).read_text(encoding="utf-8")
        self.folder = folder
        for content, name in FILE.findall(page):
            (folder / name).write_text(content, encoding="utf-8")

    def start(self, *arguments, environment=(), **settings):
        # A forked process gets no other open files.
        start = subprocess.Popen if settings else forked_python.Popen
        return start(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": str(ROOT)} | dict(environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **settings,
        )

    def run(self, *arguments, **settings):
        """The exit code, the output and the messages of a process."""
        return ended(self.start(*arguments, **settings))


def ended(process):
    with process:
        output, messages = process.communicate()
        return process.returncode, output, messages


@pytest.fixture
def recipe(tmp_path):
    return lambda page: Recipe(page, tmp_path)


# FastAPI

PRICES = "/prices/A"
FAILING = (503, {"Retry-After": "0"})


@contextmanager
def served(recipe, page, **environment):
    """A client of the service, and its process; requests wait in the socket until it is there."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        arguments = "-m", "uvicorn", "service:app", "--fd", str(listening.fileno())
        process = recipe(page).start(
            *arguments, pass_fds=[listening.fileno()], environment=environment
        )
        base = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with httpx.Client(base_url=base, trust_env=False, timeout=60) as client:
            yield client, process
        if process.returncode is None:
            process.terminate()
            ended(process)


@pytest.fixture
def quotes(recipe, upstream):
    with served(recipe, "fastapi.md", PRICES_URL=upstream.url) as (client, _):
        client.base_url = client.base_url.join("/quotes/")
        yield client


def test_fastapi_service_answers_after_a_retried_failure(quotes, upstream):
    upstream.script(PRICES, FAILING, (200, {}, {"price": 2.5}))
    response = quotes.get("A", params={"quantity": 3})
    assert (response.status_code, response.json()) == (200, {"sku": "A", "total": 7.5})
    assert sent(upstream, PRICES, "X-Retry-Attempt") == ["1", "2"]
    assert max(map(int, sent(upstream, PRICES, "X-Request-Timeout-Ms"))) <= 2000


def test_fastapi_service_answers_503_with_retry_after(quotes, upstream):
    def answer(*answers, **headers):
        upstream.script(PRICES, *answers)
        del upstream.headers[:]
        response = quotes.get("A", headers=headers)
        delay = response.headers.get("Retry-After")
        return response.status_code, delay, len(upstream.headers)

    assert answer((503, {"Retry-After": "7"})) == (503, "7", 1)
    assert answer((404, {})) == (404, None, 1)
    assert answer((400, {})) == (502, None, 1)
    assert answer(**{"X-Request-Timeout-Ms": "0"}) == (504, None, 0)
    assert answer(FAILING, FAILING, FAILING) == (503, "1", 3)
    assert answer(FAILING, FAILING)[::2] == (503, 2)  # the fifth one in all
    status, delay, requests = answer()
    assert (status, requests) == (503, 0)
    assert 1 < int(delay) <= 36


def test_fastapi_service_answers_429_to_a_client_above_its_limit(quotes, upstream):
    upstream.script(PRICES, *[(404, {})] * 200)
    responses = [quotes.get("A") for _ in range(200)]
    rejected = [each for each in responses if each.status_code == 429]
    assert {each.status_code for each in responses} == {404, 429}
    assert {each.headers["Retry-After"] for each in rejected} == {"1"}


def test_fastapi_service_passes_the_test_of_its_page(recipe):
    made = recipe("fastapi.md")
    arguments = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_service.py")
    with made.start(*arguments, environment={"PRICES_URL": "http://127.0.0.1:9"}) as process:
        output, _ = process.communicate()
    assert "1 passed" in output


# FastAPI tasks

ORDERS, INVOICES = "/orders/7", "/invoices/7"


@pytest.fixture
def dashboards(recipe, upstream):
    with served(recipe, "fastapi-tasks.md", BACKEND_URL=upstream.url) as (client, process):
        yield client, process


@pytest.mark.statement("S1-53")
def test_fastapi_dashboard_answers_by_the_failures_of_both_calls(dashboards, upstream):
    client, _ = dashboards
    upstream.script(ORDERS, (200, {}, [17]), (200, {}, [17]), FAILING, FAILING, FAILING)
    upstream.script(INVOICES, FAILING, (200, {}, [3]), (401, {}, {}), *[FAILING] * 3)

    def answer():
        response = client.get("/dashboards/7")
        return response.status_code, response.json()

    assert answer() == (200, [[17], [3]])
    assert answer() == (502, {"detail": "rejected by the backend"})
    assert answer() == (503, {"detail": "try again"})


def test_fastapi_dashboard_answers_503_without_a_retry_budget(dashboards, upstream):
    client, _ = dashboards
    for path in (ORDERS, INVOICES):
        upstream.script(path, *[FAILING] * 300)
    assert {client.get("/dashboards/7").status_code for _ in range(50)} == {503}
    del upstream.headers[:]
    assert {client.get("/dashboards/7").status_code for _ in range(10)} == {503}
    assert len(upstream.headers) < 30  # with enough budget, each call is made three times


@pytest.mark.statement("S1-60")
def test_fastapi_dashboard_is_cancelled_if_its_client_disconnects(dashboards, upstream):
    client, process = dashboards
    for path in (ORDERS, INVOICES):
        upstream.script(path, (SILENCE, {}))
    with socket.create_connection((client.base_url.host, client.base_url.port)) as connection:
        connection.sendall(b"GET /dashboards/7 HTTP/1.1\r\nHost: service\r\n\r\n")
        wait_until(lambda: len(upstream.headers) == 2)
    lines = {process.stdout.readline() for _ in range(2)}
    assert lines == {f"cancelled {path} client_disconnected\n" for path in (ORDERS, INVOICES)}


# httpx


def test_httpx_program_orders_with_one_key_after_failures(recipe, upstream):
    upstream.script(PRICES, FAILING, (200, {}, {"price": 2.5}))
    upstream.script("/orders", (429, {"Retry-After": "0"}), (201, {}, {"id": "o-17"}))
    code, output, _ = recipe("httpx.md").run("orders.py", upstream.url, "A")
    assert (code, output) == (0, "ordered: o-17\n")
    first, second = sent(upstream, "/orders", "Idempotency-Key")
    assert first == second is not None


def test_httpx_program_reports_a_retry_after_that_is_too_long(recipe, upstream):
    upstream.script(PRICES, (200, {}, {"price": 2.5}))
    upstream.script("/orders", (503, {"Retry-After": "60"}))
    code, output, messages = recipe("httpx.md").run("orders.py", upstream.url, "A")
    assert (code, output) == (1, "")
    assert "unconfirmed: HTTPStatusError" in messages
    assert messages.endswith("; retry after 60 s\n")
    assert len(sent(upstream, "/orders", "Idempotency-Key")) == 1


# SQLAlchemy


@contextmanager
def bank(recipe, url):
    """An engine with the tables of the recipe, and two accounts; they are dropped at the end."""
    namespace = run_path(str(recipe.folder / "transfer.py"))
    tables, accounts = namespace["tables"], namespace["accounts"]
    engine = create_engine(url)
    try:
        tables.create_all(engine)
        with engine.begin() as tx:
            tx.execute(insert(accounts), [{"name": "alice", "balance": 100}])
            tx.execute(insert(accounts), [{"name": "bob", "balance": 0}])
        yield engine, accounts
        tables.drop_all(engine)
    finally:
        engine.dispose()


def balances(engine, accounts):
    with engine.begin() as tx:
        return list(tx.scalars(select(accounts.c.balance).order_by(accounts.c.name)))


def test_sqlalchemy_program_gives_up_while_sqlite_stays_locked(recipe):
    program = recipe("sqlalchemy.md")
    path = program.folder / "bank.db"
    with bank(program, f"sqlite:///{path}") as (engine, accounts):
        with closing(sqlite3.connect(path, isolation_level=None)) as locking:
            locking.execute("BEGIN IMMEDIATE")
            transfer = f"sqlite:///{path}?timeout=0.01", "t-1", "alice", "bob", "30"
            code, output, messages = program.run("transfer.py", *transfer)
            locking.execute("ROLLBACK")
        assert (code, output) == (1, "")
        assert messages.count("database is locked; next attempt in") == 3
        assert "not transferred: (sqlite3.OperationalError) database is locked" in messages
        assert balances(engine, accounts) == [100, 0]


BLOCKED = text(
    "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'UPDATE acc%'"
)


def test_sqlalchemy_program_retries_disconnect_and_serialization(recipe, postgres_url):
    program = recipe("sqlalchemy.md")
    url = postgres_url.replace("postgresql://", "postgresql+psycopg://")
    with bank(program, url) as (engine, accounts):

        def blocked(other=None):
            with engine.begin() as tx:
                pid = tx.scalar(BLOCKED)
            return None if pid == other else pid

        with engine.begin() as tx:
            tx.execute(update(accounts).values(balance=accounts.c.balance + 1))
            process = program.start("transfer.py", url, "t-1", "alice", "bob", "30")
            lost = wait_until(blocked)
            with engine.begin() as killing:
                killing.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": lost})
            wait_until(lambda: blocked(lost))
        code, output, messages = ended(process)  # the update above was committed meanwhile
        assert (code, output) == (0, "transferred\n")
        first, second = messages.splitlines()
        assert "attempt 1 of 4 failed" in first and "administrator command" in first
        assert "attempt 2 of 4 failed" in second and "could not serialize access" in second
        assert balances(engine, accounts) == [71, 31]


# A language model

COMPLETIONS = "/v1/chat/completions"
COMPLETION = {
    "id": "c-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": "Forty-two."},
        }
    ],
}
LIMITED = (429, {"Retry-After-Ms": "1"})


def ask(recipe, upstream, *answers):
    upstream.script(COMPLETIONS, *answers)
    keys = {"OPENAI_BASE_URL": f"{upstream.url}/v1", "OPENAI_API_KEY": "k"}
    return recipe("llm.md").run("answer.py", "Six by seven?", environment=keys)


def test_llm_program_answers_after_a_rate_limit(recipe, upstream):
    code, output, _ = ask(recipe, upstream, LIMITED, (200, {}, COMPLETION))
    assert (code, output) == (0, "Forty-two.\n")


def test_llm_program_prints_fallback_when_retries_are_exhausted(recipe, upstream):
    code, output, messages = ask(recipe, upstream, *[LIMITED] * 9)
    assert (code, output) == (3, "The assistant is busy. Please ask again in a minute.\n")
    assert messages.endswith("failed: Error code: 429\n")
    assert len(upstream.headers) == 4


# A Redis stream

CHARGE = "/charge"


class Billing:
    """The program of the recipe on the streams "orders" and "orders-dead"."""

    def __init__(self, program, upstream, url):
        self.program = program
        self.environment = {"REDIS_URL": url, "PAYMENTS_URL": upstream.url}
        self.orders, self.dead = RedisStream(url, "orders"), RedisStream(url, "orders-dead")
        self.orders.close()  # deletes both
        self.orders = RedisStream(url, "orders")

    def start(self):
        return self.program.start("app.py", environment=self.environment)

    def stop(self, process):
        """Stop the worker when the stream is empty; return its messages."""
        wait_until(lambda: not self.orders.client.xlen("orders"))
        process.terminate()
        code, output, messages = ended(process)
        assert (code, output) == (0, ""), messages
        return messages

    def close(self):
        self.dead.client.close()
        self.orders.close()


@pytest.fixture
def billing(recipe, upstream, valkey_url):
    made = Billing(recipe("redis-stream.md"), upstream, valkey_url)
    yield made
    made.close()


def test_stream_worker_charges_an_order_with_one_key(billing, upstream):
    upstream.script(CHARGE, (503, {}), (200, {}))
    billing.orders.put('{"order": 17}', id="order-17")
    messages = billing.stop(billing.start())
    assert "billing key=order-17: attempt 1 of 5: HTTPStatusError" in messages
    first, second = sent(upstream, CHARGE, "Idempotency-Key")
    assert first == second is not None
    assert billing.dead.letters("orders-dead") == []


def test_stream_worker_dead_letters_an_order_that_is_rejected(billing, upstream):
    upstream.script(CHARGE, (422, {}, {"error": "no such card"}))
    billing.orders.put('{"order": 18}', id="order-18")
    billing.stop(billing.start())
    [letter] = billing.dead.letters("orders-dead")
    assert letter["message"]["id"] == "order-18"
    assert "no such card" in letter["reason"]


def test_stream_worker_repeats_the_order_of_a_killed_process(billing, upstream):
    upstream.script(CHARGE, (SILENCE, {}), (200, {}))
    billing.orders.put('{"order": 19}', id="order-19")
    process = billing.start()
    wait_until(lambda: sent(upstream, CHARGE, "Idempotency-Key"))
    process.kill()
    ended(process)
    billing.stop(billing.start())
    first, second = sent(upstream, CHARGE, "Idempotency-Key")
    assert first == second is not None


# A cron job

ROWS = 1000
SLOW_INSERTS = """
    CREATE TABLE orders (id INTEGER PRIMARY KEY, sku TEXT, price FLOAT);
    CREATE VIEW numbers AS
        WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000)
        SELECT i FROM n;
    CREATE TRIGGER slow AFTER INSERT ON orders BEGIN SELECT count(*) FROM numbers; END;
"""


def stored(connection):
    return [each for (each,) in connection.execute("SELECT id FROM orders ORDER BY id")]


def test_cron_program_resumes_after_a_stop_and_a_kill(recipe):
    program = recipe("cron-csv.md")
    rows = (f"{each},A,{'free' if each == 711 else 9.5}\n" for each in range(1, ROWS + 1))
    (program.folder / "orders.csv").write_text("id,sku,price\n" + "".join(rows))
    job = "load_orders.py", "2026-11-21"
    with closing(sqlite3.connect(program.folder / "jobs.db", isolation_level=None)) as database:
        database.executescript(SLOW_INSERTS)  # so that the signals come before the end
        for number, code in ((signal.SIGTERM, 1), (signal.SIGKILL, -signal.SIGKILL)):
            earlier = len(stored(database))
            process = program.start(*job)
            wait_until(lambda before=earlier: len(stored(database)) > before)
            process.send_signal(number)
            assert ended(process)[0] == code
            assert earlier < len(stored(database)) < ROWS - 1
        database.execute("DROP TRIGGER slow")
        ending = program.run(*job)
        assert ending == (3, "completed: 1000 read, 999 written, 1 open dead letters\n", "")
        assert stored(database) == [each for each in range(1, ROWS + 1) if each != 711]
