"""The files and packages that a call enters."""

from tools import walk


def test_numbers_count_files_packages_and_returns():
    paths = ["template.py", "policies/base.py", "policies/simple.py", "template.py"]
    assert walk.numbers(paths) == walk.Walk(files=3, packages=2, returns=1)


def test_walk_of_failing_calls_is_printed(capsys):
    walk.main()
    memory, durable = capsys.readouterr().out.splitlines()
    assert memory.startswith("3 attempts with backoff") and "Walk(files=" in memory
    assert durable.startswith("a failure in a durable cache") and "Walk(files=" in durable


def test_entered_files_are_those_of_the_library_without_test_helpers():
    template = walk.RetryTemplate(clock=walk.VirtualClock(), backoff=walk.ExponentialBackoff())
    files = walk.entered(lambda: template.execute(walk.fail))
    assert "template.py" in files
    assert not any(path.startswith(("testing/", "tests/")) for path in files)
