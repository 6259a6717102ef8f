"""``retrytemplate simulate`` as a user runs it."""

from __future__ import annotations

import json
import sys

import pytest

from retrytemplate.cli import main
from retrytemplate.cli.commands.simulate import seconds

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def simulated(capsys):
    """The lines that the command prints."""

    def run(*args):
        assert main(["simulate", *map(str, args)]) == 0
        return [line.rstrip() for line in capsys.readouterr().out.splitlines()]

    return run


@pytest.fixture
def figures(capsys):
    """The JSON that the command prints."""

    def run(*args):
        assert main(["simulate", "--json", *map(str, args)]) == 0
        return json.loads(capsys.readouterr().out, parse_constant=pytest.fail)

    return run


def wrong(capsys, *args):
    """The error output of a wrong use."""
    try:
        code = main(["simulate", *args])
    except SystemExit as ended:  # where the arguments cannot even be read
        code = ended.code
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    return err


# -- the numbers ----------------------------------------------------------------------------------


def test_each_retry_has_its_delays_and_total_delays(figures):
    report = figures("--policy", "simple:4", "--backoff", "exponential:1,2,30", "--runs", 5)
    (run,) = report["simulations"]

    assert [retry["delay"]["median"] for retry in run["retries"]] == [1.0, 2.0, 4.0]
    assert [retry["so_far"]["median"] for retry in run["retries"]] == [1.0, 3.0, 7.0]
    assert [(retry["number"], retry["runs"]) for retry in run["retries"]] == [
        (1, 5),
        (2, 5),
        (3, 5),
    ]
    assert run["total"]["most"] == 7.0
    assert run["worst_case"] == {"attempts": 4, "waiting": 7.0, "duration": 7.0}


def test_quantiles_are_in_order(figures):
    (run,) = figures("--backoff", "uniform:1,2", "--seed", 3)["simulations"]

    for retry in run["retries"]:
        low, tenth, middle, ninetieth, high = retry["delay"].values()
        assert 1 <= low < tenth < middle < ninetieth < high <= 2


def test_seed_determines_the_numbers(figures):
    first, again, other = (figures("--seed", seed)["simulations"] for seed in (1, 1, 2))

    assert first == again
    assert first != other


def test_backoffs_are_compared_with_the_same_random_numbers(figures):
    one, two = figures("--backoff", "uniform:1,2", "--backoff", "uniform:1,2", "--seed", 1)[
        "simulations"
    ]

    assert one == two


def test_attempt_duration_counts_for_timeouts(figures):
    args = ("--policy", "timeout:10", "--backoff", "fixed:2", "--attempt-duration", "3")
    (run,) = figures(*args)["simulations"]

    assert len(run["retries"]) == 2
    assert run["worst_case"]["duration"] == 13.0


def test_unbounded_values_are_null_and_runs_are_truncated(figures):
    args = ("--policy", "always", "--backoff", "fixed:1", "--runs", 3, "--at-most", 10)
    (run,) = figures(*args)["simulations"]

    assert (run["cut"], len(run["retries"])) == (3, 9)
    assert run["worst_case"] == {"attempts": None, "waiting": None, "duration": None}


def test_infinite_sums_are_null(figures):
    args = ("--backoff", "fixed:1e308", "--attempt-duration", "1e308", "--runs", 2)
    (run,) = figures(*args)["simulations"]

    first, second, *_ = run["retries"]
    assert (first["so_far"]["most"], second["so_far"]["most"]) == (1e308, None)
    assert set(run["total"].values()) == {None}
    assert run["worst_case"] == {"attempts": 5, "waiting": None, "duration": None}


# -- the table and the plots ----------------------------------------------------------------------


def test_table_draws_the_spread_of_delays(simulated):
    lines = simulated("--policy", "simple:4", "--backoff", "fixed:2", "--seed", 1)

    assert "backoff  fixed:2" in lines
    assert "policy   simple:4, 1000 runs" in lines
    assert "     1  1000  2.00  2.00  2.00  2.00" in "\n".join(lines)
    assert "total delay    median 6.00 s, 90 % within 6.00 s, longest 6.00 s" in lines
    assert "worst case     attempts 4, waiting 6.00 s, total 6.00 s" in lines


def test_strips_of_all_backoffs_have_one_scale(simulated):
    lines = simulated("--backoff", "fixed:1", "--backoff", "fixed:4", "--policy", "simple:2")
    marks = [line.index("█") for line in lines if line.startswith("     1")]

    assert marks[0] < marks[1]


def test_histogram_counts_every_run(simulated):
    lines = simulated("--seed", 1, "--runs", 500)
    first = lines.index("total delay, runs") + 1
    bars = lines[first : lines.index("", first)]

    assert len(bars) == 12
    assert sum(int(line.split()[-1]) for line in bars) == 500


def test_output_fits_the_terminal_without_truncation(simulated, monkeypatch):
    for columns in (72, 80, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = simulated(
            "--seed", 1, "--policy", "simple:12", "--backoff", "exponential:1,2,600,full"
        )
        assert max(map(len, lines)) <= columns
        assert not [line for line in lines if "…" in line]


def test_terminal_of_0_columns_is_treated_as_80(simulated, monkeypatch):
    usual = simulated("--seed", 1)
    monkeypatch.setenv("COLUMNS", "0")

    assert simulated("--seed", 1) == usual
    assert 70 < max(map(len, usual)) <= 80


def test_long_simulation_shows_its_first_and_last_retries(simulated):
    lines = simulated("--policy", "simple:50", "--backoff", "fixed:1", "--runs", 2)
    numbers = [line.split()[0] for line in lines if line[:6].strip(". ").isdigit() or "..." in line]

    assert numbers == [*map(str, range(1, 13)), "...", "47", "48", "49"]


@pytest.mark.parametrize(
    "backoff",
    ["fixed:1e308", "uniform:0,1e308", "exponential:1,1e100,inf,full", "uniform:0,5e-324"],
)
def test_extreme_delays_fit_the_table(simulated, backoff):
    lines = simulated("--backoff", backoff, "--runs", 50, "--seed", 1)

    assert max(map(len, lines)) <= 80
    assert not [line for line in lines if "…" in line or "nan" in line]


def test_truncated_runs_are_counted(simulated):
    lines = simulated("--policy", "always", "--runs", 4)

    assert "truncated      4 runs reached --at-most" in lines
    assert "worst case     attempts unbounded, waiting unbounded, total unbounded" in lines


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--policy", "never"), "No retries."),
        (("--backoff", "none"), "No delays: each retry follows immediately."),
    ],
)
def test_summary_without_delays_prints_a_note(simulated, args, says):
    assert says in simulated(*args)


def test_terminal_without_unicode_gets_ascii(monkeypatch, capfdbinary):
    with open(1, "w", encoding="ascii", closefd=False) as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert main(["simulate", "--seed", "1"]) == 0
    shown = capfdbinary.readouterr().out

    assert b"..::" in shown or b".::" in shown
    assert b"####" in shown


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0123, "0.012"),
        (1.5, "1.50"),
        (29.96, "30.0"),
        (1234.5, "1234"),
        (999_999_999.0, "999999999"),
        (1e9, "1e+09"),
        (1.234e100, "1.23e+100"),
        (float("inf"), "unbounded"),
    ],
)
def test_seconds_have_about_three_significant_digits(value, text):
    assert seconds(value) == text


# -- the picture ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "args",
    [
        ("--backoff", "fixed:1e50"),
        ("--backoff", "exponential:1,2,30,full"),
        ("--backoff", "fixed:1", "--backoff", "none"),
        ("--policy", "never"),
        ("--policy", "timeout:3", "--backoff", "uniform:1,2", *("--backoff", "fixed:1") * 3),
    ],
)
def test_picture_is_a_png_file(simulated, tmp_path, args):
    path = tmp_path / "delays.picture"
    simulated(*args, "--runs", 20, "--png", path)

    assert path.read_bytes().startswith(PNG)


def test_picture_of_more_backoffs_has_more_panels(simulated, tmp_path):
    def height(*backoffs):
        path = tmp_path / "delays.png"
        simulated(
            "--runs", 5, "--png", path, *(word for each in backoffs for word in ("--backoff", each))
        )
        return int.from_bytes(path.read_bytes()[20:24])

    assert height("fixed:1") == height("fixed:1", "fixed:2") < height(*["fixed:1"] * 4)


def test_unwritable_picture_exits_with_1(capsys, tmp_path):
    code = main(["simulate", "--runs", "5", "--png", str(tmp_path / "nowhere" / "delays.png")])
    out, err = capsys.readouterr()

    assert (code, out) == (1, "")
    assert "delays.png: No such file or directory" in err


# -- wrong use ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--policy", "sometimes"), "there is no policy 'sometimes'; allowed: simple, "),
        (("--backoff", "fixed"), "backoff 'fixed' needs delay; allowed: delay=SECONDS"),
        (("--runs", "0"), "argument --runs: must be a whole number from 1 to 1000000, got '0'"),
        (("--runs", "1.5"), "argument --runs: must be a whole number from 1 to 1000000, got '1.5'"),
        (("--runs", "1" + "0" * 12), "must be a whole number from 1 to 1000000, got '10000000"),
        (("--runs", "9" * 5000), "argument --runs: must be a whole number from 1 to 1000000"),
        (("--runs", "²"), "argument --runs: must be a whole number from 1 to 1000000"),
        (("--at-most", "none"), "argument --at-most: must be a whole number from 1 to 10000"),
        (("--at-most", "10001"), "argument --at-most: must be a whole number from 1 to 10000"),
        (("--seed", "x"), "argument --seed: invalid int value: 'x'"),
        (("--attempt-duration", "-1"), "argument --attempt-duration: must be a number of seconds"),
        (("--attempt-duration", "nan"), "argument --attempt-duration: must be a number of seconds"),
        (("--attempt-duration", "inf"), "argument --attempt-duration: must be a number of seconds"),
        (("--speed", "9"), "unrecognized arguments: --speed 9"),
    ],
)
def test_wrong_use_names_the_allowed_values(capsys, args, says):
    assert says in wrong(capsys, *args)


@pytest.mark.parametrize(
    ("policy", "attempts"), [("always", 100), ("simple:5", 5), (f"simple:{10**400}", 100)]
)
def test_too_many_attempts_are_rejected(capsys, policy, attempts):
    message = wrong(capsys, "--policy", policy, "--runs", "1000000")

    assert message == (
        f"retrytemplate simulate: --runs: 1000000 runs of up to {attempts} attempts are "
        f"{attempts}000000; at most 1000000 attempts are simulated\n"
    )


@pytest.mark.parametrize("args", [(), ("--json",)])
def test_delays_too_long_for_an_axis_are_rejected(capsys, tmp_path, args):
    path = tmp_path / "delays.png"
    message = wrong(capsys, "--backoff", "fixed:1e308", "--runs", "2", "--png", str(path), *args)

    assert "--png: delays of 1e+308 seconds cannot be drawn" in message
    assert not path.exists()


@pytest.mark.parametrize(
    ("module", "args", "purpose"),
    [("rich", (), "the table"), ("matplotlib", ("--json", "--png", "x.png"), "the picture")],
)
def test_missing_extra_is_named(capsys, monkeypatch, module, args, purpose):
    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)

    message = wrong(capsys, *args)

    assert purpose in message
    assert "install retrytemplate[cli]" in message


def test_numbers_need_no_extra(figures, monkeypatch):
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    assert figures("--runs", 5)["runs"] == 5
