"""The benchmarks, which write the tables of pages, run; their results are not asserted."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.documentation

ROOT = Path(__file__).resolve().parent.parent
TITLES = (
    "success, decorated",
    "success, decorated, async",
    "success, `call`",
    "success, block",
    "two failures",
    "two failures, async",
    "exhausted",
    "exhausted, async",
    "one listener",
    "stateful success",
    "garbage, success",
    "garbage, success, async",
    "garbage, exhausted",
    "garbage, exhausted, async",
    "import, ms",
)


def bench(*arguments):
    return subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "bench.py"), "--quick", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    page, figures = folder / "page.md", folder / "figures.json"
    page.write_text("before\n<!-- results: begin -->\nold\n<!-- results: end -->\nafter\n")
    run = bench("--only", "ours,loop", "--update", str(page), "--json", str(figures))
    assert run.returncode == 0, run.stderr
    return run.stdout, page.read_text(encoding="utf-8"), json.loads(figures.read_text())


def rows(text):
    """The cells of the table by title: those after the head and its line."""
    lines = [line for line in text.splitlines() if line.startswith("|")][2:]
    return {
        cells[0]: cells[1:]
        for cells in ([c.strip() for c in line[2:-1].split("|")] for line in lines)
    }


def test_every_cell_has_a_row_with_a_figure_for_the_library(done):
    found = rows(done[0])
    assert tuple(found) == TITLES
    assert all(float(ratio) >= 0 for _, ratio, _ in list(found.values())[:-1])


def test_calls_of_the_library_leave_no_garbage(done):
    counts = [cells[1] for title, cells in rows(done[0]).items() if title.startswith("garbage")]
    assert counts == ["0"] * 4


def test_new_table_replaces_the_old_one_in_the_page(done):
    printed, page, _ = done
    assert page == (f"before\n<!-- results: begin -->\n{printed}<!-- results: end -->\nafter\n")


def test_figures_of_every_run_are_kept(done):
    (run,) = done[2]["runs"]
    assert run.keys() == {"loop", "ours"}
    assert run["loop"].keys() == run["ours"].keys()


def test_unknown_library_raises_error_that_names_the_known_ones():
    refused = bench("--only", "ours,lop")
    assert refused.returncode == 2
    assert "no lop; there are loop, ours, tenacity, stamina, backoff" in refused.stderr


@pytest.mark.parametrize(
    ("name", "titles"),
    [
        ("records", ["once", "3 times", "20 times"]),
        ("stores", ["sqlite", "sqlite, asyncio"]),
        (
            "checks",
            [
                "guard, nothing is stopped",
                "`check`, nothing is stopped",
                "a template's call, no guard",
                "a template's call, guarded",
                "guard, something else is stopped",
                "guard, rejected",
            ],
        ),
        ("switch", ["SQLite"]),
        ("simulation", ["2,000"]),
        (
            "observe",
            [
                "decorated success, without listeners",
                "`install()` (bound 1.05)",
                "`install(metrics=[InMemoryMetrics()])`",
                "`install(prometheus=True)` (bound 2.6)",
                "`install(metrics=[OTelMetrics()])`",
                "decorated success, without listeners, async",
                "`install()` (bound 1.05), async",
                "`install(metrics=[InMemoryMetrics()])`, async",
                "`install(prometheus=True)` (bound 2.2), async",
                "`install(metrics=[OTelMetrics()])`, async",
                "success and a `Histogram` of prometheus_client",
                "success and a histogram of OpenTelemetry",
                "`InMemoryMetrics.first_success`",
                "`PrometheusMetrics.first_success`",
                "`OTelMetrics.first_success`",
                "two retries, `LoggingListener`",
                "two retries, `install()` (bound 1.5)",
                "rejection by an open breaker, without listeners",
                "rejection, `Observer()` (bound 3.0)",
                "rejection, `Observer(metrics=[InMemoryMetrics()])`",
                "scrape, native histograms",
                "scrape, `PrometheusCollector` (bound 1.5)",
            ],
        ),
        (
            "workers",
            [
                "`TaskSupervisor.start`; `TaskGroup.create_task`",
                "`process_stream`; `asyncio.Queue` and 16 tasks",
            ],
        ),
    ],
)
def test_other_tables_are_written_between_their_marks(tmp_path, name, titles):
    page = tmp_path / "page.md"
    page.write_text(f"before\n<!-- {name}: begin -->\nold\n<!-- {name}: end -->\nafter\n")
    script = str(ROOT / "benchmarks" / f"{name}.py")
    run = subprocess.run(
        [sys.executable, script, "--quick", "--update", str(page)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 0, run.stderr
    text = page.read_text(encoding="utf-8")
    assert text == f"before\n<!-- {name}: begin -->\n{run.stdout}<!-- {name}: end -->\nafter\n"
    found = rows(run.stdout)
    assert list(found) == titles
    rows_ = [row[:-1] if name == "observe" else row for row in found.values()]  # else: of a ratio
    cells = [cell for row in rows_ for cell in row]
    assert all(float(cell.removesuffix(" KiB").replace(",", "")) >= 0 for cell in cells)


def test_benchmark_of_chunk_steps_runs_with_and_without_faults(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- batch: begin -->\nold\n<!-- batch: end -->\n")
    script = str(ROOT / "benchmarks" / "batch.py")
    done = subprocess.run(
        [sys.executable, script, "--rows", "3000", "--turns", "1", "--update", str(page)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    titles = [
        line.split("|")[1].strip() for line in page.read_text().splitlines() if "| sqlite" in line
    ]
    faulty = ["sqlite, faults in the processor", "sqlite, faults in the writer"]
    assert titles == ["sqlite", "sqlite", *faulty]


def test_benchmark_of_deadlines_writes_its_table_and_figures(tmp_path):
    page, figures = tmp_path / "page.md", tmp_path / "figures.json"
    page.write_text("<!-- deadline: begin -->\nold\n<!-- deadline: end -->\n")
    script = str(ROOT / "benchmarks" / "deadline.py")
    options = ["--quick", "--update", str(page), "--json", str(figures)]
    done = subprocess.run(
        [sys.executable, script, *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert page.read_text() == (f"<!-- deadline: begin -->\n{done.stdout}<!-- deadline: end -->\n")
    kept = json.loads(figures.read_text())
    assert list(rows(done.stdout)) == list(kept)
    assert kept["retrytemplate"]["async"][0] > 0.0
    assert kept["retrytemplate, in a thread"]["sync"][0] > 0.0


def test_benchmark_of_pipelines_writes_its_table_and_figures(tmp_path):
    page, figures = tmp_path / "page.md", tmp_path / "figures.json"
    page.write_text("<!-- pipeline: begin -->\nold\n<!-- pipeline: end -->\n", encoding="utf-8")
    script = str(ROOT / "benchmarks" / "pipeline.py")
    options = ["--quick", "--update", str(page), "--json", str(figures)]
    done = subprocess.run(
        [sys.executable, script, *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    text = page.read_text(encoding="utf-8")
    assert text == f"<!-- pipeline: begin -->\n{done.stdout}<!-- pipeline: end -->\n"
    kept = json.loads(figures.read_text(encoding="utf-8"))
    assert list(rows(done.stdout)) == list(kept)
    assert all(each > 0.0 for each in kept.values())


def test_benchmark_of_configuration_files_writes_its_table(tmp_path):
    figures = tmp_path / "figures.json"
    script = str(ROOT / "benchmarks" / "config.py")
    done = subprocess.run(
        [sys.executable, script, "--quick", "--json", str(figures)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    kept = json.loads(figures.read_text(encoding="utf-8"))
    assert list(kept) == ["load", "call of an endpoint", "the same, asynchronous"]
    assert all(each > 0.0 for each in kept.values())


def test_benchmark_of_shared_circuits_counts_the_round_trips(valkey_url):
    script = str(ROOT / "benchmarks" / "circuits.py")
    done = subprocess.run(
        [sys.executable, script, "--quick", "--url", valkey_url],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    cells = [line.split(" | ") for line in done.stdout.splitlines()[2:-2]]
    assert [int(trips) for _, trips, *_ in cells] == [1, 1, 1, 2, 1, 0, 0, 0]


def test_benchmark_of_rate_limits_writes_its_table_and_ratios(valkey_url, tmp_path):
    page, figures = tmp_path / "page.md", tmp_path / "figures.json"
    page.write_text("<!-- rate-limiter: begin -->\n<!-- rate-limiter: end -->\n", encoding="utf-8")
    script = str(ROOT / "benchmarks" / "rate_limiter.py")
    options = ["--quick", "--url", valkey_url, "--update", str(page), "--json", str(figures)]
    done = subprocess.run(
        [sys.executable, script, *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout in page.read_text(encoding="utf-8")
    kept = json.loads(figures.read_text(encoding="utf-8"))
    assert list(rows(done.stdout)) == list(kept)
    assert all(each > 0.0 for each in kept.values())
    assert "relative to the empty script (at least 0.85)" in done.stdout


def test_benchmark_of_messages_has_a_row_for_each_number_of_slots(valkey_url):
    script = str(ROOT / "benchmarks" / "workers.py")
    done = subprocess.run(
        [sys.executable, script, "--quick", "--url", valkey_url],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = rows(done.stdout)
    commands = ["one per round trip", "sent together"]
    assert list(found) == [f"{slots}, {each}" for slots in (16, 64) for each in commands]
    assert all(float(cells[2]) > 0 for cells in found.values())


def test_benchmark_of_messages_measures_a_table(tmp_path):
    script = str(ROOT / "benchmarks" / "workers.py")
    done = subprocess.run(
        [sys.executable, script, "--quick", "--url", f"sqlite:///{tmp_path}/jobs.db"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = rows(done.stdout)
    assert list(found) == ["16, SQLite", "64, SQLite"]
    assert all(float(cells[1].replace(",", "")) > 0 for cells in found.values())
