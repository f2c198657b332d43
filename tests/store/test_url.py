"""Every form of a store's URL, and that no password gets out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import percolator_core as percolator
from percolator_core.errors import ConfigurationError
from percolator_core.store.url import Address, parse, redacted


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("redis://127.0.0.1:6379/0", {"hosts": (("127.0.0.1", 6379),)}),
        ("redis://", {"hosts": (("localhost", 6379),)}),
        ("redis://h", {"hosts": (("h", 6379),)}),
        ("redis://h/3", {"hosts": (("h", 6379),), "database": 3}),
        ("redis://h?db=3", {"hosts": (("h", 6379),), "database": 3}),
        ("redis://[::1]:7000/", {"hosts": (("::1", 7000),)}),
        ("redis://:p%40ss@h", {"hosts": (("h", 6379),), "password": "p@ss"}),
        ("redis://me:a%2Fb:c@h", {"hosts": (("h", 6379),), "username": "me", "password": "a/b:c"}),
        ("redis://me@h", {"hosts": (("h", 6379),), "username": "me"}),
        ("redis://h?username=me&password=x", {"hosts": (("h", 6379),), "username": "me", "password": "x"}),
        (
            "rediss://h:6380/1?ssl_ca_certs=%2Fetc%2Fca.pem&ssl_cert_reqs=required",
            {
                "hosts": (("h", 6380),),
                "database": 1,
                "tls": True,
                "options": (("ssl_ca_certs", "/etc/ca.pem"), ("ssl_cert_reqs", "required")),
            },
        ),
    ],
)
def test_redis(url: str, parts: dict[str, Any]) -> None:
    assert parse(url) == Address("redis", **parts)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("ssl_check_hostname=true", True),
        ("ssl_check_hostname=Yes", True),
        ("ssl_check_hostname=1", True),
        ("ssl_check_hostname=False", False),
        ("ssl_check_hostname=no", False),
        ("ssl_check_hostname=0", False),
        ("ssl_cert_reqs=optional", "optional"),
        ("ssl_ca_path=/a%2520b", "/a%20b"),
        ("ssl_certfile=/a+%2B", "/a +"),
        ("socket_timeout=2.5", 2.5),
        ("socket_connect_timeout=86400", 86400.0),
        ("client_name=worker-1", "worker-1"),
    ],
)
def test_options(option: str, value: object) -> None:
    assert parse(f"rediss://h?{option}").options == ((option.partition("=")[0], value),)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        (
            "redis+sentinel://h1/m?sentinel_password=p&durability=replicas=1,fsync",
            Address(
                "sentinel",
                hosts=(("h1", 26379),),
                service="m",
                sentinel_password="p",
                durability="replicas=1,fsync",
            ),
        ),
        ("unix:///run/redis.sock", Address("unix", socket_path="/run/redis.sock")),
        ("unix:///run/a%20b?db=2", Address("unix", socket_path="/run/a b", database=2)),
        ("unix://u:p@/s", Address("unix", socket_path="/s", username="u", password="p")),
        (
            "redis+sentinel://h1:26379,h2/mymaster/2",
            Address("sentinel", hosts=(("h1", 26379), ("h2", 26379)), service="mymaster", database=2),
        ),
        (
            "rediss+sentinel://:p@h1/mymaster",
            Address("sentinel", hosts=(("h1", 26379),), service="mymaster", tls=True, password="p"),
        ),
        ("redis+cluster://h1:7000,h2:7001", Address("cluster", hosts=(("h1", 7000), ("h2", 7001)))),
        ("rediss+cluster://h1", Address("cluster", hosts=(("h1", 6379),), tls=True)),
    ],
)
def test_other_servers(url: str, address: Address) -> None:
    assert parse(url) == address


@pytest.mark.parametrize(
    ("url", "folder"),
    [
        ("embedded:./state", "{cwd}/state"),
        ("embedded:state", "{cwd}/state"),
        ("embedded:.percolator", "{cwd}/.percolator"),
        ("embedded:a/../b c?#%20@", "{cwd}/b c?#%20@"),
        ("embedded://state", "{cwd}/state"),
        ("embedded:///var/state", "/var/state"),
        ("embedded:/var/state/", "/var/state"),
        ("embedded:~/state", "{home}/state"),
    ],
)
def test_embedded(url: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    assert parse(url) == Address("embedded", folder=Path(folder.format(cwd=tmp_path, home="/home/me")))


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "is empty"),
        ("embedded:", "names no folder: write embedded:./state"),
        ("embedded://", "names no folder"),
        ("embedded: ", "names no folder"),
        ("embedded:a\0b", "NUL"),
        ("embedded:~nobody-of-that-name/x", "not known here"),
        ("embeded:./state", "did you mean embedded:"),
        ("Redis://h", "did you mean redis:"),
        ("reddis://h", "did you mean redis"),
        ("redis+sentinels://h/m", "did you mean redis[+]sentinel:"),
        ("postgresql://h", "it starts with one of embedded:"),
        ("./state", "did you mean embedded:./state"),
        ("state", "did you mean embedded:state"),
        ("localhost:6379", "did you mean redis://localhost:6379"),
        ("redis:h:6379", "lacks the //"),
        ("unix:/run/redis.sock", "write unix:///PATH"),
        ("unix://run/redis.sock", "full path"),
        ("unix://", "full path"),
        ("redis://h:port", r"HOST\[:PORT\]"),
        ("redis://h:0", r"HOST\[:PORT\]"),
        ("redis://h:65536", r"HOST\[:PORT\]"),
        ("redis://::1", r"HOST\[:PORT\]"),
        ("redis://[::1", "IPv6"),
        ("redis://h1,h2", "more than one host"),
        ("redis+cluster://", r"HOST\[:PORT\]"),
        ("redis+cluster://h1,,h2", r"HOST\[:PORT\]"),
        ("redis+cluster://h/1", "only 0"),
        ("redis+sentinel://h1,h2", "names no service"),
        ("redis+sentinel://h1/", "names no service"),
        ("redis+sentinel://h1/m/x", "not a number"),
        ("redis://h/x", "not a number"),
        ("redis://h/-1", "not a number"),
        ("redis://h/٣", "not a number"),
        ("redis://h/0/1", "not a number"),
        ("redis://h/0?db=1", "two databases"),
        ("redis://h?db=1&db=1", "twice"),
        ("redis://h?ssl_ca_cert=x", "did you mean ssl_ca_certs"),
        ("redis://h?nonsense=x", "known are client_name"),
        ("redis://h/0#x", "holds a #"),
        ("redis+sentinel://me:1/secret@h/m", "holds an @ behind the host"),
        ("redis://h?client_name=a@b", "holds an @ behind the host"),
        ("redis://h?ssl_certfile=c", "option ssl_certfile without TLS: write rediss://"),
        ("redis+cluster://h?ssl_certfile=c", r"without TLS: write rediss\+cluster://"),
        ("redis+sentinel://h/m?ssl_certfile=c", r"without TLS: write rediss\+sentinel://"),
        ("unix:///s?ssl_certfile=c", "without TLS: write rediss://"),
        ("redis://h?ssl_cert_reqs=none", "without TLS"),
        ("rediss://h?ssl_cert_reqs=maybe", "ssl_cert_reqs that cannot be: write none, optional or required"),
        ("rediss://h?ssl_cert_reqs=NONE", "write none, optional or required"),
        ("rediss://h?ssl_cert_reqs=", "write none, optional or required"),
        ("rediss://h?ssl_check_hostname=perhaps", "ssl_check_hostname that cannot be: write true or false"),
        ("rediss://h?ssl_check_hostname=off", "write true or false"),
        ("rediss://h?ssl_check_hostname=", "write true or false"),
        ("rediss://h?ssl_ca_certs=", "write the path of a file"),
        ("rediss://h?ssl_certfile=a%00b", "write the path of a file"),
        ("rediss://h?ssl_ca_path=", "write the path of a folder"),
        ("rediss://h?ssl_keyfile=k", "name the certificate with ssl_certfile"),
        ("redis://h?socket_timeout=0", "socket_timeout that cannot be: write a number of seconds, above 0"),
        ("redis://h?socket_timeout=-1", "a number of seconds"),
        ("redis://h?socket_timeout=nan", "a number of seconds"),
        ("redis://h?socket_timeout=inf", "a number of seconds"),
        ("redis://h?socket_timeout=86401", "a number of seconds"),
        ("redis://h?socket_connect_timeout=soon", "socket_connect_timeout that cannot be"),
        ("redis://h?client_name=a%20b", "client_name that cannot be"),
        ("redis://h?client_name=", "client_name that cannot be"),
        ("redis://h?sentinel_password=x", "no sentinels"),
        ("redis://a..b", "cannot be a name"),
        ("redis://h%00", "cannot be a name"),
        ("redis://" + "h" * 64, "cannot be a name"),
        ("unix:///run/a%0ab", "full path"),
        ("redis://h /0", "space or a control"),
        ("redis://h/0\n", "space or a control"),
    ],
)
def test_what_cannot_be(url: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as error:
        parse(url)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h:6379/0", "redis://h:6379/0"),
        ("redis://:secret@h/0", "redis://:***@h/0"),
        ("redis://me:secret@h/0", "redis://me:***@h/0"),
        ("redis://secret@h/0", "redis://***@h/0"),
        ("redis://h?password=secret&db=1", "redis://h?password=***&db=1"),
        ("redis://h?db=1&p%61ssword=secret", "redis://h?db=1&p%61ssword=***"),
        (
            "redis+sentinel://h/m?sentinel_password=secret&durability=replicas=1,fsync",
            "redis+sentinel://h/m?sentinel_password=***&durability=replicas=1,fsync",
        ),
        ("redis://:se/cr?et#@secret@h", "redis://:***@h"),
        ("redis:me:secret@h", "redis:me:***@h"),
        ("reddis://me:secret@h", "reddis://me:***@h"),
        ("unix://me:secret@/run/s", "unix://me:***@/run/s"),
        ("unix:///run/a@b", "unix:///run/a@b"),
        ("redis+sentinel://:secret@h1,h2/m", "redis+sentinel://:***@h1,h2/m"),
        ("embedded:./a:b@c", "embedded:./a:b@c"),
        ("me:secret@h:6379", "me:***@h:6379"),
        ("secret@h:6379", "***@h:6379"),
        ("unix:me:secret@/run/s", "unix:me:***@/run/s"),
        ("", ""),
    ],
)
def test_redacted(url: str, shown: str) -> None:
    assert redacted(url) == shown


SECRET = "canary-7f3a"


@given(
    scheme=st.sampled_from(
        ["redis", "rediss", "unix", "redis+sentinel", "redis+cluster", "reddis", "REDIS", "x"]
    ),
    colon=st.sampled_from(["://", ":", ":/"]),
    user=st.sampled_from(["", "me", "a%20b"]),
    around=st.tuples(*[st.text("ab12/?#@:%[] \n=&", max_size=4)] * 2),
    rest=st.sampled_from(["h", "h:1", "h:x", "/run/s", "h/0", "h/m/0", "", "h?x=1"]),
)
def test_no_message_holds_a_password(
    scheme: str, colon: str, user: str, around: tuple[str, str], rest: str
) -> None:
    url = f"{scheme}{colon}{user}:{SECRET.join(around)}@{rest}"
    try:
        shown = repr(parse(url))
    except ConfigurationError as error:
        shown = f"{error} {error.__cause__}"
    assert SECRET not in shown
    assert SECRET not in redacted(url)


def test_an_address_is_a_value() -> None:
    address = parse("redis://me:secret@h/1")
    assert "secret" not in repr(address)
    assert hash(address) == hash(parse("redis://me:secret@h/1"))
    assert address != parse("redis://me:other@h/1")
    watched = parse("redis+sentinel://h/m?sentinel_password=secret")
    assert "secret" not in repr(watched)
    assert watched != parse("redis+sentinel://h/m?sentinel_password=other")


@pytest.mark.parametrize(
    ("durability", "words"),
    [
        ("replicas", "write replicas=1, fsync, timeout=2.5, or several joined by commas"),
        ("replicas=-1", "write replicas=1"),
        ("replicas=101", "replicas is 0 to 100"),
        ("timeout=0", "timeout is above 0"),
        ("fsync=yes", "write replicas=1"),
        ("always%0a", "write replicas=1"),
    ],
)
def test_a_durability_that_cannot_be(durability: str, words: str) -> None:
    """It is told before anything is asked of the network."""
    for place in (
        "redis://:canary@127.0.0.1:1/0",
        "redis+sentinel://h.invalid/m",
        "redis+cluster://h.invalid",
    ):
        url = f"{place}?durability={durability}"
        with pytest.raises(ConfigurationError, match=words) as error:
            percolator.connect(url, "n")
        assert "\n" not in str(error.value)
        assert "canary" not in str(error.value)
