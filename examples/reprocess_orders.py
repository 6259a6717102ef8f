"""Reprocess a file of orders as messages that are redelivered: the purpose of stateful retry.

``retrytemplate demo`` does the same work as a chunk step, many lines at once.

Here every line is priced by an HTTP service and written to SQLite, one transaction a line.  The
service is flaky, so lines fail: they are rolled back and redelivered, until they are written or
given up.  Run it with nothing but the package installed::

    python examples/reprocess_orders.py [orders.csv]
"""

import json
import sqlite3
import sys
from collections import deque

from retrytemplate import (
    ExceptionClassifier,
    ExponentialBackoff,
    RetryAfterBackoff,
    RetryContext,
    RetryState,
    RetryTemplate,
    SimpleRetryPolicy,
)
from retrytemplate.demo.client import PricingClient, PricingError, ServiceUnavailable
from retrytemplate.demo.flaky_service import PricingService
from retrytemplate.demo.orders import Line, OrdersFile, shipped

# 1. Which failures are retryable?  The nearest class in the exception's MRO decides: a
#    ServiceUnavailable (503) is a PricingError, but a transient one.
worth_retrying = ExceptionClassifier(
    {ConnectionError: True, TimeoutError: True, PricingError: False, ServiceUnavailable: True},
    default=False,
)

# 2. One template for all lines.  The service's Retry-After is obeyed where it sends one.
template = RetryTemplate(
    policy=SimpleRetryPolicy(max_attempts=5, classifier=worth_retrying),
    backoff=RetryAfterBackoff(
        fallback=ExponentialBackoff(initial=0.02, maximum=0.5, jitter="full")
    ),
    name="reprocess-orders",
)

database = sqlite3.connect(":memory:")
database.executescript("""
    CREATE TABLE written (line INTEGER PRIMARY KEY, order_id TEXT, cents INTEGER);
    CREATE TABLE dead_letters (line INTEGER PRIMARY KEY, content TEXT, history TEXT);
""")


def handle(line: Line, client: PricingClient) -> None:
    """Execute one line with the template; raises if it has to be redelivered."""

    # 3. The work, its transaction inside the attempt: it is rolled back before the failure is
    #    recorded, and a COMMIT that fails is a failed attempt.
    def work(context: RetryContext) -> None:
        with database:
            order = line.parse()
            row = (line.number, order.order_id, None)
            database.execute("INSERT INTO written VALUES (?, ?, ?)", row)
            cents = client.price(order, key=f"line-{line.number}")  # no price: no row either
            database.execute("UPDATE written SET cents = ? WHERE line = ?", (cents, line.number))

    # 4. The recovery, when no attempt is left.  The context remembers the earlier deliveries.
    def dead_letter(context: RetryContext) -> None:
        history = [(each.number, each.type_name, each.message) for each in context.history]
        with database:
            row = (line.number, line.text, json.dumps(history))
            database.execute("INSERT INTO dead_letters VALUES (?, ?, ?)", row)

    # 5. Stateful: a failure is counted under the line's key and re-raised at once.  "wait": a line
    #    that is redelivered early waits for the remaining delay; the others continue meanwhile.
    state = RetryState(line.number, defer_backoff="wait")
    template.execute(work, recovery=dead_letter, state=state)


def main() -> None:
    orders = OrdersFile.read(sys.argv[1] if len(sys.argv) > 1 else shipped())
    queue = deque(orders.lines)
    deliveries = 0
    with PricingService(seed=7) as service:
        client = PricingClient(service.host, service.port)
        while queue:
            line = queue.popleft()
            deliveries += 1
            try:
                handle(line, client)
            except sqlite3.Error:
                raise  # not the line's fault, and no delivery will mend it
            except Exception:
                queue.append(line)  # not acknowledged: it is redelivered
        client.close()

    (written,) = database.execute("SELECT count(*) FROM written").fetchone()
    (dead,) = database.execute("SELECT count(*) FROM dead_letters").fetchone()
    print(
        f"{len(orders.lines)} lines read, {deliveries} deliveries: {written} written, {dead} dead"
    )
    for number, content, history in database.execute("SELECT * FROM dead_letters LIMIT 3"):
        print(f"  line {number}: {content!r}")
        for attempt, error, message in json.loads(history):
            print(f"    attempt {attempt}: {error}: {message}")


if __name__ == "__main__":
    main()
