"""A Prometheus server and its promtool, for the tests that check rules and queries with them."""

import json
import os
import shutil
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import urlopen

from tests.support.postgres import free_port

NAMED = "RETRYTEMPLATE_TEST_PROMETHEUS"
ABSENT = f"no Prometheus: neither {NAMED}, a folder, nor prometheus and promtool on PATH"
START_TIMEOUT = 60.0
CONFIG = """\
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs:
  - job_name: shop
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


def binaries():
    """The folder of prometheus and promtool, or None."""
    named = os.environ.get(NAMED)
    found = shutil.which("promtool", path=named)
    return found and Path(found).parent


def promtool(folder, *arguments, text=None):
    """Run promtool; return its exit code and its output."""
    done = subprocess.run(
        [folder / "promtool", *arguments],
        input=text,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    return done.returncode, done.stdout


class Server:
    """A server that scrapes one port and evaluates one file of rules.

    :param port: of the program that is scraped.
    """

    def __init__(self, folder, port, rules):
        self.url = f"http://127.0.0.1:{free_port()}"
        self.folder, self._config = folder, CONFIG.format(rules=rules, port=port)

    @contextmanager
    def running(self, binaries):
        """Run it as long as the block does."""
        self.folder.mkdir()
        config, log = self.folder / "prometheus.yml", self.folder / "log"
        config.write_text(self._config)
        command = [
            binaries / "prometheus",
            f"--config.file={config}",
            f"--storage.tsdb.path={self.folder / 'data'}",
            f"--web.listen-address={self.url.removeprefix('http://')}",
        ]
        with (
            log.open("wb") as output,
            subprocess.Popen(command, stdout=output, stderr=output) as process,
        ):
            try:
                until = time.monotonic() + START_TIMEOUT
                while not self._is_ready():
                    assert process.poll() is None and time.monotonic() < until, log.read_text()
                    time.sleep(0.05)  # a starting server gives no event
                yield self
            finally:
                process.kill()

    def _is_ready(self):
        try:
            with urlopen(f"{self.url}/-/ready", timeout=START_TIMEOUT) as response:
                return response.status == 200
        except OSError:
            return False

    def get(self, path, **query):
        """The data of a path of the API."""
        with urlopen(
            f"{self.url}/api/v1/{path}?{urlencode(query)}", timeout=START_TIMEOUT
        ) as found:
            answer = json.load(found)
        assert answer["status"] == "success"
        return answer["data"]

    def query(self, expression):
        """The series of an expression, now."""
        return self.get("query", query=expression)["result"]
