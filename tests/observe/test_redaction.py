"""Redaction of the texts of errors."""

import pytest

from retrytemplate.observe import REDACT
from retrytemplate.observe.redaction import redact_text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://ada:pass@db:5432/shop", "postgresql://ada:***@db:5432/shop"),
        ("redis://:p@ss:w@host/0 failed", "redis://:***@host/0 failed"),
        ("Authorization: Bearer eyJh.bG-ci_Oi/J=", "Authorization: Bearer ***"),
        ("bearer abc, next", "bearer ***, next"),
        ("https://x/?api_key=17&page=2", "https://x/?api_key=***&page=2"),
        ("access_token=a; SECRET=b, password=c d", "access_token=***; SECRET=***, password=*** d"),
        ("password='a b' host='h'", "password=*** host='h'"),
        ('{"password": "a b", "user": "ada"}', '{"password": ***, "user": "ada"}'),
        ("{'client_secret': 's3', 'n': 1}", "{'client_secret': ***, 'n': 1}"),
        ("no such key: order-17", "no such key: order-17"),
        ("http://host:80/path@2", "http://host:80/path@2"),
        ("token=", "token="),
        ("password: s3 for ada", "password: *** for ada"),
        ("token = s3, key = 17", "token = ***, key = ***"),
        ("X-Auth-Token: s3", "X-Auth-Token: ***"),
        ("x-api-key: s3", "x-api-key: ***"),
        ("client_secret : 's 3'", "client_secret : ***"),
        ("passwd=s3 pwd=s4", "passwd=*** pwd=***"),
        ("Authorization: Basic YWRhOnMz", "Authorization: Basic ***"),
        ("{'Authorization': 'Basic YWRhOnMz'}", "{'Authorization': 'Basic ***'}"),
        ("authorization=s3", "authorization=***"),
        ("Authorization: Token s3", "Authorization: ***"),
        ("{'Authorization': 'ApiKey s3', 'n': 1}", "{'Authorization': '***', 'n': 1}"),
        ("Unexpected token: }", "Unexpected token: }"),
        ("a basic error", "a basic error"),
    ],
)
def test_secrets_are_hidden(text, shown):
    assert REDACT(text) == shown


def test_long_text_is_cut_at_8_kib():
    assert len(REDACT("x" * 100_000)) <= 8192
    assert REDACT("x" * 100_000).endswith("x [91848 characters cut]")
    assert REDACT("x" * 8192) == "x" * 8192


def test_secret_across_the_cut_is_hidden():
    for place in range(8100, 8250, 7):
        text = "x" * place + "://ada:" + "secret" * 40 + "@host " + "x" * 9000
        assert "secret" not in REDACT(text)


@pytest.mark.parametrize(
    "text",
    [
        "://:" * 4000,
        "://a:" * 3000,
        "key='" * 3000,
        "bearer " * 2000,
        "token  " * 2000,
        "password : " * 2000,
        "authorization: " * 2000,
    ],
)
def test_repeated_beginnings_take_linear_time(text):
    assert len(REDACT(text)) <= 8192


@pytest.mark.parametrize("redact", [lambda text: text[0] / 2, lambda text: None])
def test_failed_redaction_hides_the_text(redact):
    assert redact_text("secret", redact) == "<redaction failed>"


def test_text_without_redaction_is_kept():
    assert redact_text("secret", None) == "secret"
    assert redact_text("password=1", REDACT) == "password=***"
