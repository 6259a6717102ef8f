"""Draw the output of the commands ``batch``, ``dlq`` and ``switch`` for the docs.

It runs a real job in a folder of its own: one run to the end, and one whose process crashes; and
it stops some scopes, as of some days ago::

    python tools/command_pictures.py
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from rich.console import Console
from sqlalchemy import text

from retrytemplate import SimpleRetryPolicy
from retrytemplate.batch import ChunkStep, DeadLetters, JobRepository, Runs, SkipPolicy
from retrytemplate.cli.commands.batch.commands import RUNS
from retrytemplate.cli.commands.batch.progress import BarReporter
from retrytemplate.cli.commands.dlq import LETTERS
from retrytemplate.cli.commands.switch.loading import load_view
from retrytemplate.cli.commands.switch.rendering import SwitchScreen
from retrytemplate.cli.tables import Screen
from retrytemplate.control import KillSwitch, SQLSwitchStore
from retrytemplate.testing import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from retrytemplate.batch import RunStatus

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
WIDTH = 96
ORDERS = 3000
# Fonts from elsewhere: a picture is to show without the net.
FONTS = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)
KILLER = 1707


class PriceError(Exception):
    """There is no price for an order."""


class Service:
    """Answers most orders."""

    def __init__(self, dies: bool = False) -> None:
        self.random = random.Random(7)
        self.failed: set[int] = set()
        self.dies = dies

    def price(self, order: int) -> int | None:
        time.sleep(0.002)
        if self.dies and order == KILLER:
            os._exit(9)
        if order % 331 == 0:
            raise PriceError(f"SKU-{order % 400:04} has no price")
        if self.random.random() < 0.01 and order not in self.failed:
            self.failed.add(order)
            raise ConnectionError("the service is away")
        return None if order % 40 == 0 else order


def write(orders: list[int], transaction: Connection) -> None:
    rows = [{"id": order} for order in orders]
    transaction.execute(text("INSERT INTO priced VALUES (:id) ON CONFLICT DO NOTHING"), rows)


def a_step(jobs: JobRepository, price: Callable[[int], Any], **settings: Any) -> ChunkStep:
    usual: dict[str, Any] = {"name": "reprice-orders", "skip": SkipPolicy(on=PriceError)}
    return ChunkStep(
        reader=range(1, ORDERS + 1),
        processor=price,
        writer=write,
        chunk_size=100,
        repository=jobs,
        retry=SimpleRetryPolicy(3),
        key=lambda order: f"order-{order}",
        **usual | settings,
    )


def looking_at(
    bar: BarReporter, jobs: JobRepository, order: int, drawn: list[Any]
) -> Callable[[int], Any]:
    """The service, and one who looks at the run, which is drawn when it is at this order."""
    service = Service()

    def price(each: int) -> int | None:
        if each % 100 == 50 or each == order:
            run: RunStatus = Runs(jobs).page(status="running")[0]
            shown = bar.render(run)
            if each == order:
                drawn.append(shown)
        return service.price(each)

    return price


def save(name: str, title: str, draw: Callable[[Console], None]) -> None:
    console = Console(
        record=True,
        width=WIDTH,
        file=StringIO(),
        force_terminal=True,
        highlight=False,
        markup=False,
    )
    draw(console)
    picture = console.export_svg(title=title, unique_id=name)
    (IMAGES / f"{name}.svg").write_text(FONTS.sub("", picture), encoding="utf-8")


def save_screen(screen: Screen, name: str, title: str, show: Callable[[], None]) -> None:
    def draw(console: Console) -> None:
        screen.console, screen.mark = console, "…"
        show()

    save(name, title, draw)


def draw_all(url: str) -> None:
    with JobRepository(url) as jobs:
        with jobs.transaction() as transaction:
            transaction.execute(text("CREATE TABLE priced (id INTEGER PRIMARY KEY)"))
        drawn: list[Any] = []
        price = looking_at(BarReporter(), jobs, 1850, drawn)
        a_step(jobs, price).run({"day": "2026-11-20"})
        save("batch-run", "retrytemplate batch run job.py:step", lambda to: to.print(drawn[0]))

        unskipped = a_step(jobs, Service().price, name="ship-orders", skip=SkipPolicy())
        unskipped.run({"depot": "Bremen"})
        subprocess.run([sys.executable, __file__, url], check=False)
        screen = Screen()
        page = Runs(jobs).page()
        save_screen(
            screen,
            "batch-status",
            "retrytemplate batch status",
            lambda: RUNS.draw(screen, page),
        )

        price = looking_at(BarReporter(), jobs, KILLER, drawn)
        a_step(jobs, price).run({"day": "2026-11-21"})
        save("batch-watch", "retrytemplate batch watch", lambda to: to.print(drawn[1]))
        draw_letters(jobs)


def draw_letters(jobs: JobRepository) -> None:
    letters, screen = DeadLetters(jobs), Screen()
    first, second, *_ = letters.page(step="reprice-orders")
    letters.discard([first.id], by="ada", reason="a test order")
    a_step(jobs, lambda order: order).replay([second.id], by="ada")
    page = letters.page(limit=8)
    save_screen(
        screen,
        "dlq-list",
        "retrytemplate dlq list --state any",
        lambda: LETTERS.draw(screen, page, "There are more"),
    )


def draw_switch(url: str) -> None:
    """A switch with four stopped scopes: temporary, permanent, in a canary, and overdue."""
    store = SQLSwitchStore(url)
    told: list[Any] = []

    def ago(hours: float, *notifiers: Callable[[Any], None]) -> KillSwitch:
        clock = VirtualClock(epoch=time.time() - hours * 3600)
        return KillSwitch(store, clock=clock, notifiers=notifiers)

    ago(22 * 24, told.append).stop(
        feature="pdf-export", reason="totals wrong, incident 4698", by="lee", permanent=True
    )
    ago(9 * 24, told.append).stop(
        experiment="prompt-b",
        reason="too many retries, see 4702",
        by="ada",
        expires_in=7 * 86_400,
        when_expired="keep",
    )
    ago(30, told.append).stop(
        segment="retail", reason="provider down, incident 4709", by="max", expires_in=48 * 3600
    )
    ago(3, told.append).resume(
        segment="retail", justification="provider is back", by="lee", canary=(5, 25, 100)
    )
    ago(0.2).stop(
        segment="finance", reason="leak suspected, incident 4711", by="kim", expires_in=86_400
    )
    screen, looked = SwitchScreen(), load_view(store)
    save_screen(screen, "switch-status", "retrytemplate switch status", lambda: screen.list(looked))

    def report() -> None:
        screen.report(looked)
        screen.changes(looked.changes[:3])

    save_screen(screen, "switch-report", "retrytemplate switch report --audit 3", report)
    store.close()


def die(url: str) -> None:
    """A run whose process crashes in the middle of it."""
    with JobRepository(url) as jobs:
        a_step(jobs, Service(dies=True).price).run({"day": "2026-11-21"})


if __name__ == "__main__":
    if len(sys.argv) == 2:
        die(sys.argv[1])
    else:
        with TemporaryDirectory() as folder:
            draw_all(f"sqlite:///{folder}/jobs.db")
            draw_switch(f"sqlite:///{folder}/switch.db")
