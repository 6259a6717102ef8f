"""The preset for models: errors of the real OpenAI SDK against a real server."""

import asyncio
import ssl
from contextlib import contextmanager

import httpx
import pytest

from retrytemplate import current_context
from retrytemplate.control import OPENAI, AuthenticationAlert
from tests.support.http_service import RESET, SILENCE, Page
from tests.support.postgres import free_port

openai = pytest.importorskip("openai", reason="no openai: pip install retrytemplate[test]")

ERROR = {"message": "no", "type": "some_error", "param": None, "code": None}
UNPAID = {"error": ERROR | {"type": "insufficient_quota", "code": "insufficient_quota"}}
MESSAGES = [{"role": "user", "content": "What does it cost?"}]


@pytest.fixture
def model(server):
    return Page(server, "/chat/completions")


@contextmanager
def sdk(url, seconds=10.0):
    """The client with the documented settings, and its method."""
    http = openai.DefaultHttpxClient(trust_env=False, verify=False)
    with openai.OpenAI(
        api_key="k", base_url=url, max_retries=0, timeout=seconds, http_client=http
    ) as client:
        yield lambda: client.chat.completions.create(model="m", messages=MESSAGES)


def ask(service, url=None, seconds=10.0, **settings):
    with sdk(url or service.url, seconds) as call:
        return OPENAI.template(clock=service.clock, **settings).outcome(call)


@pytest.mark.statement("S4-21")
@pytest.mark.parametrize(
    ("status", "name"),
    [
        (408, "APIStatusError"),
        (409, "ConflictError"),
        (429, "RateLimitError"),
        (500, "InternalServerError"),
        (503, "InternalServerError"),
        (529, "InternalServerError"),
    ],
)
def test_busy_model_is_retried(model, status, name):
    model.answers((status, {}, {"error": ERROR}))
    outcome = ask(model)
    assert (outcome.exception, outcome.attempts, len(model.requests)) == (None, 2, 2)
    assert outcome.history[0].type_name == f"openai.{name}"


@pytest.mark.statement("S4-21")
@pytest.mark.parametrize(
    ("status", "name"),
    [
        (400, "BadRequestError"),
        (401, "AuthenticationError"),
        (403, "PermissionDeniedError"),
        (404, "NotFoundError"),
        (422, "UnprocessableEntityError"),
    ],
)
def test_permanent_model_error_is_not_retried(model, status, name):
    model.answers((status, {}, {"error": ERROR}))
    outcome = ask(model)
    assert (outcome.attempts, len(model.requests)) == (1, 1)
    assert type(outcome.exception) is getattr(openai, name)


@pytest.mark.statement("S4-21")
def test_exhausted_quota_is_not_waited_for(model):
    model.answers((429, {}, UNPAID))
    outcome = ask(model)
    assert (outcome.attempts, type(outcome.exception)) == (1, openai.RateLimitError)


def test_should_retry_header_of_the_server_is_respected(model):
    model.answers((503, {"x-should-retry": "false"}))
    assert ask(model).attempts == 1


def test_rate_limit_is_waited_for(model):
    model.answers((429, {"Retry-After": "20"}, {"error": ERROR}))
    assert ask(model).attempts == 2
    assert 20.0 <= model.times[1] <= 22.0


@pytest.mark.statement("S4-21")
def test_model_without_a_connection_is_retried(model):
    outcome = ask(model, f"http://127.0.0.1:{free_port()}")
    assert (outcome.attempts, type(outcome.exception)) == (4, openai.APIConnectionError)
    model.answers(RESET)
    assert ask(model).attempts == 2


class OfAnother(openai.APIConnectionError):
    """An exception with the attributes of litellm's."""


@pytest.mark.statement("S4-21")
@pytest.mark.parametrize(
    "kind",
    [openai.APIConnectionError, openai.APITimeoutError, OfAnother],
    ids=lambda it: it.__name__,
)
def test_connection_error_without_a_cause_is_retried(model, kind):
    def ask_in_vain():
        raise kind(request=httpx.Request("POST", model.url))

    outcome = OPENAI.template(clock=model.clock).outcome(ask_in_vain)
    assert outcome.exception.__cause__ is None
    assert outcome.attempts == 4


def test_untrusted_certificate_is_not_retried(model):
    def distrusted():
        try:
            raise ssl.SSLCertVerificationError(1, "self-signed certificate")
        except OSError as error:
            raise openai.APIConnectionError(request=None) from error

    assert OPENAI.template(clock=model.clock).outcome(distrusted).attempts == 1


@pytest.mark.statement("S4-21")
def test_model_timeout_is_retried(model):
    model.answers(SILENCE)
    outcome = ask(model, seconds=0.3)
    assert (outcome.exception, outcome.attempts) == (None, 2)
    assert outcome.history[0].type_name == "openai.APITimeoutError"


@pytest.mark.statement("S4-21")
def test_asynchronous_client_with_a_limit_is_retried(model):
    model.answers(429, SILENCE, 503, 401)

    async def main():
        http = openai.DefaultAsyncHttpxClient(trust_env=False, verify=False)
        async with openai.AsyncOpenAI(
            api_key="k", base_url=model.url, max_retries=0, http_client=http
        ) as client:

            async def call():
                create = client.chat.completions.create(model="m", messages=MESSAGES)
                async with asyncio.timeout(0.3 if current_context().attempt == 2 else 10):
                    return await create

            return await OPENAI.template(clock=model.clock).outcome_async(call)

    outcome = asyncio.run(main())
    names = [each.type_name.rpartition(".")[2] for each in outcome.history]
    assert names == [
        "RateLimitError",
        "TimeoutError",
        "InternalServerError",
        "AuthenticationError",
    ]


@pytest.mark.statement("S4-76")
def test_expired_key_is_reported_at_once_and_once(model):
    model.answers((401, {}, {"error": ERROR}))
    alerts = []
    outcome = ask(model, name="answers", listeners=[AuthenticationAlert(alerts.append)])
    assert (outcome.attempts, len(model.requests)) == (1, 1)
    assert [(each.name, each.error) for each in alerts] == [("answers", outcome.exception)]


def test_sdk_retries_multiply_unless_disabled(model):
    model.answers((500, {"retry-after-ms": "1"}), (500, {"retry-after-ms": "1"}), 500)
    http = openai.DefaultHttpxClient(trust_env=False, verify=False)
    with openai.OpenAI(api_key="k", base_url=model.url, http_client=http) as client:
        template = OPENAI.template(clock=model.clock)
        create = client.chat.completions.create
        outcome = template.outcome(create, model="m", messages=MESSAGES)
    assert (outcome.attempts, len(model.requests)) == (2, 4)
