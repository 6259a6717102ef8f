"""The package imports nothing before the first use of a name."""

import subprocess
import sys

import pytest

from retrytemplate.observe import InMemoryMetrics, Metrics, OTelMetrics, PrometheusMetrics

LOADED = "import sys; print(*{each.partition('.')[0] for each in sys.modules})"
OWN = "import sys; print(*(each for each in sys.modules if 'retrytemplate.' in each))"


def printed(program):
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()


def test_import_of_observe_loads_no_module_of_it():
    loaded = printed(f"import retrytemplate.observe; {OWN}")
    assert [each for each in loaded if each.startswith("retrytemplate.observe.")] == []


def test_metrics_in_memory_load_no_exporter():
    loaded = printed(
        "from retrytemplate.observe import InMemoryMetrics, Registry; "
        f"InMemoryMetrics(), Registry(); {LOADED}"
    )
    assert {"prometheus_client", "opentelemetry"} & {*loaded} == set()


def test_registry_loads_no_component():
    loaded = printed(f"from retrytemplate.observe import Registry; Registry(); {OWN}")
    packages = ("retrytemplate.control.", "retrytemplate.workers.", "retrytemplate.batch.")
    assert [each for each in loaded if each.startswith(packages)] == []


@pytest.mark.parametrize("kind", [InMemoryMetrics, OTelMetrics, PrometheusMetrics])
def test_metrics_have_the_methods_of_the_protocol(kind):
    methods = [name for name in vars(Metrics) if not name.startswith("_")]
    assert methods == ["add", "record", "first_success"]
    assert all(callable(getattr(kind, name)) for name in methods)
