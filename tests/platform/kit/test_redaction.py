import pytest

from journeyman.platform.kit.redaction import MARK, holds_secret, names_a_secret, redact, redact_text, register_secret


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer abc.def-123456",
        "used key jm_0123456789abcdef",
        "Incorrect API key provided: sk-proj-abcdefghijkl",
        "push with ghp_abcdefghijklmnopqrstuvwxyz012345",
        "AKIAIOSFODNN7EXAMPLE denied",
        "postgresql+asyncpg://journeyman:hunter22@127.0.0.1/journeyman",
        "redis://:hunter22@host",
        '{"api_key": "abcdefgh"}',
        "JOURNEYMAN_INTERNAL_SECRET=abcdefgh",
        "?token=abcdefgh&x=1",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc\n-----END RSA PRIVATE KEY-----",
        "cookie eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJSM",
    ],
)
def test_what_looks_like_a_secret_goes(text: str) -> None:
    hidden = redact_text(text)
    assert MARK in hidden
    for secret in ("abc.def", "0123456789abcdef", "abcdefgh", "hunter22", "IOSFODNN", "MIIE", "eyJzdWIi"):
        assert secret not in hidden


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens=4096 used",
        "12 passed in 0.3s",
        "http://127.0.0.1:8700/v1/tasks",
        "a task-runner",
        "sk-1",
        "the token is",
    ],
)
def test_ordinary_text_stays(text: str) -> None:
    assert redact_text(text) == text


@pytest.mark.parametrize(
    "name",
    [
        "authorization",
        "Authorization",
        "api_key",
        "model_api_key",
        "s3_secret_key",
        "password",
        "x-api-key",
        "auth_token",
    ],
)
def test_fields_named_after_secrets(name: str) -> None:
    assert names_a_secret(name)
    assert redact({name: "anything"}) == {name: MARK}


@pytest.mark.parametrize(
    "name", ["input_tokens", "max_tokens", "token_count", "key", "step_key", "secretary", "monkey"]
)
def test_fields_that_are_no_secrets(name: str) -> None:
    assert redact({name: "anything"}) == {name: "anything"}


def test_depth_and_numbers() -> None:
    value = {"a": [{"password": "x"}, ("Bearer abcdefgh",)], "tokens": 3, "secret": 5, "raw": b"sk-abcdefghij\xff"}
    assert redact(value) == {
        "a": [{"password": MARK}, [f"Bearer {MARK}"]],
        "tokens": 3,
        "secret": 5,
        "raw": f"{MARK}\ufffd",
    }


def test_registered_values_go_wherever_they_are() -> None:
    register_secret("plain words as a secret")
    assert redact_text("say plain words as a secret now") == f"say {MARK} now"
    register_secret("a")
    assert redact_text("banana") == "banana"


@pytest.mark.parametrize(
    "text",
    [
        "The API wants Authorization: Bearer abc.def-123456",
        "Basic dXNlcjpwYXNzd29yZA== works",
        "log in with jm_0123456789abcdef",
        "set OPENAI_API_KEY=sk-proj-abcdefghijkl",
        "password: swordfish",
        "the database is postgresql://app:hunter22@db/app",
        "-----BEGIN PRIVATE KEY-----\nMIIE",
    ],
)
def test_a_secret_is_seen(text: str) -> None:
    assert holds_secret(text)


@pytest.mark.parametrize(
    "text",
    [
        "The API uses basic authentication, and bearer tokens for machines.",
        "Requests carry a Bearer token.",
        "The schema has token: string and password: required.",
        "Run it with PGPASSWORD=$PGPASSWORD, or password=<yours>.",
        "api_key = os.environ['KEY'] is read at import time.",
        "The test of the password field passes.",
        "postgresql://app@db/app needs no password.",
    ],
)
def test_prose_about_secrets_is_none(text: str) -> None:
    assert not holds_secret(text)


def test_a_registered_secret_is_seen_in_any_shape() -> None:
    register_secret("plain words of ours")
    assert holds_secret("it said plain words of ours, twice")
