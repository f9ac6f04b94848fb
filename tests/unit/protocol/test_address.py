from __future__ import annotations

import pytest

from inferway.protocol.address import ModelAddress, parse_model


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (
            "http://127.0.0.1:8080/v2/models/digits",
            ModelAddress("127.0.0.1", 8080, False, "", "digits"),
        ),
        (
            "https://models.example/a/b/v2/models/x%20y/versions/3",
            ModelAddress("models.example", 443, True, "/a/b", "x y", "3"),
        ),
        ("http://[::1]:1/v2/models/m/", ModelAddress("::1", 1, False, "", "m")),
    ],
)
def test_urls_are_taken_apart_and_put_together(url: str, expected: ModelAddress) -> None:
    found = parse_model(url)
    assert found == expected
    assert parse_model(str(found)) == expected


def test_ports_and_hosts_stand_as_headers_have_them() -> None:
    assert parse_model("http://[::1]/v2/models/m").authority == "[::1]:80"
    assert parse_model("https://host/v2/models/m").path == "/v2/models/m"
    assert parse_model("http://host/p/v2/models/m").server_path == "/p/v2"


@pytest.mark.parametrize(
    "url",
    [
        "", "digits", "http://127.0.0.1:8080", "http://127.0.0.1:8080/v2/models/",
        "ftp://127.0.0.1/v2/models/m", "http:///v2/models/m", "http://h:0/v2/models/m",
        "http://h:70000/v2/models/m", "http://h/v2/models/m?a=b", "http://h/v2/models/m#a",
        "http://h/v2/models/m/infer", "http://h/v2/models/m\r\nX: y", "http://h/v2/models/ü",
        "http://[::1/v2/models/m",
    ],
)  # fmt: skip
def test_what_is_no_models_url_is_refused_with_one_that_is(url: str) -> None:
    with pytest.raises(ValueError, match=r"is no model's URL: write it as http://127"):
        parse_model(url)


def test_passwords_in_urls_are_refused_and_not_repeated() -> None:
    with pytest.raises(ValueError, match=r"would be in logs; name an environment") as error:
        parse_model("http://me:secret@h/v2/models/m")
    assert "secret" not in str(error.value)
