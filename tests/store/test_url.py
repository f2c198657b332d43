"""Every form of a store's URL, and that no password gets out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import percolator_core as percolator
from percolator_core.errors import ConfigurationError
from percolator_core.store.redaction import redacted
from percolator_core.store.url import Address, absolute, parse


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
        (
            "unix:///run/a%3Fb?durability=fsync",
            Address("unix", socket_path="/run/a?b", durability="fsync"),
        ),
        ("unix:///run/a&b", Address("unix", socket_path="/run/a&b")),
        ("unix:///run/a%26b=c", Address("unix", socket_path="/run/a&b=c")),
        ("redis+cluster://é.example,a-b_c", Address("cluster", hosts=(("é.example", 6379), ("a-b_c", 6379)))),
        ("redis+cluster://h?durability=", Address("cluster", hosts=(("h", 6379),))),
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
        ("embedded:a/../b c#%20@", "{cwd}/b c#%20@"),
        ("embedded:a%3Fb%3fc", "{cwd}/a?b?c"),
        ("embedded:a%253Fb%25253fc%25", "{cwd}/a%3Fb%253fc%25"),
        ("embedded:a%25%3F", "{cwd}/a%25?"),
        ("embedded:a&b=c", "{cwd}/a&b=c"),
        ("embedded://state", "{cwd}/state"),
        ("embedded:///var/state", "/var/state"),
        ("embedded:/var/state/", "/var/state"),
        ("embedded:~/state", "{home}/state"),
    ],
)
def test_embedded(url: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    address = Address("embedded", folder=Path(folder.format(cwd=tmp_path, home="/home/me")))
    assert parse(url) == address
    full = absolute(url)
    monkeypatch.chdir("/")
    assert parse(full) == address


@pytest.mark.parametrize(
    ("query", "durability"),
    [
        ("durability=fsync", "fsync"),
        ("durability=replicas=1,fsync", "replicas=1,fsync"),
        ("durability=fsync%2Ctimeout=2.5", "fsync,timeout=2.5"),
        ("durability=", ""),
    ],
)
@pytest.mark.parametrize("folder", ["state", "/var/st%3Fte"])
def test_the_durability_of_an_embedded_store(folder: str, query: str, durability: str) -> None:
    address = parse(f"embedded:{folder}?{query}")
    assert address.durability == durability
    assert address.folder == parse(f"embedded:{folder}").folder
    assert parse(absolute(f"embedded:{folder}?{query}")) == address


def test_only_the_folder_of_an_embedded_store_is_relative() -> None:
    for url in ("redis://me:secret@h/0?durability=fsync", "unix:///run/a%3Fb", "redis+cluster://h"):
        assert absolute(url) == url
    with pytest.raises(ConfigurationError):
        absolute("state")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "is empty"),
        ("embedded:", "names no folder: write embedded:./state"),
        ("embedded://", "names no folder"),
        ("embedded: ", "names no folder"),
        ("embedded:a\0b", "NUL"),
        ("embedded:?durability=fsync", "names no folder"),
        ("embedded:a?", r"something other than \?durability=.* write %3F for a \? in the folder's name"),
        ("embedded:a?b", "write %3F"),
        ("embedded:a?db=1", "write %3F"),
        ("embedded:a?fsync", "write %3F"),
        ("embedded:a?durability", "write %3F"),
        ("embedded:a?durability=fsync&socket_timeout=1", "write %3F"),
        ("embedded:a?durability=fsync&durability=fsync", "write %3F"),
        ("embedded:a?durability=sync", "durability cannot be parsed: write replicas=1"),
        ("embedded:a\n?x=1", "write %3F"),
        ("unix:///me:secret@/run/s", "has a user after unix:///: write unix://USER:PASSWORD@/PATH"),
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
        ("redis+cluster://h/1", "only database 0"),
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
        ("redis://h?nonsense", "an option without =: write NAME=VALUE, and %26 for an & in a password"),
        ("redis://h?durability=replicas=1&fsync", "an option without ="),
        ("redis://h?password=a&b", "an option without =: .* %26 for an & in a password"),
        ("redis://h?password=a&b=c", "after a password: write %26 for an & in the password"),
        ("redis://h?password=a&db=b", "after a password: .* put the option in front of it"),
        ("redis://h?password=a&durability=b", "after a password"),
        ("redis+sentinel://h/m?sentinel_password=a&b=c", "after a password"),
        ("redis://h?passwort=a&b=c", "did you mean password"),
        ("redis://h/0#x", "holds a #"),
        ("redis+sentinel://me:1/secret@h/m", "has an @ after the host"),
        ("redis://h?client_name=a@b", "has an @ after the host"),
        ("redis://h?ssl_certfile=c", "option ssl_certfile without TLS: write rediss://"),
        ("redis+cluster://h?ssl_certfile=c", r"without TLS: write rediss\+cluster://"),
        ("redis+sentinel://h/m?ssl_certfile=c", r"without TLS: write rediss\+sentinel://"),
        ("unix:///s?ssl_certfile=c", "without TLS: write rediss://"),
        ("redis://h?ssl_cert_reqs=none", "without TLS"),
        ("rediss://h?ssl_cert_reqs=maybe", "value for ssl_cert_reqs: write none, optional or required"),
        ("rediss://h?ssl_cert_reqs=NONE", "write none, optional or required"),
        ("rediss://h?ssl_cert_reqs=", "write none, optional or required"),
        ("rediss://h?ssl_check_hostname=perhaps", "value for ssl_check_hostname: write true or false"),
        ("rediss://h?ssl_check_hostname=off", "write true or false"),
        ("rediss://h?ssl_check_hostname=", "write true or false"),
        ("rediss://h?ssl_ca_certs=", "write the path of a file"),
        ("rediss://h?ssl_certfile=a%00b", "write the path of a file"),
        ("rediss://h?ssl_ca_path=", "write the path of a folder"),
        ("rediss://h?ssl_keyfile=k", "name the certificate with ssl_certfile"),
        ("redis://h?socket_timeout=0", "value for socket_timeout: write a number of seconds, above 0"),
        ("redis://h?socket_timeout=-1", "a number of seconds"),
        ("redis://h?socket_timeout=nan", "a number of seconds"),
        ("redis://h?socket_timeout=inf", "a number of seconds"),
        ("redis://h?socket_timeout=86401", "a number of seconds"),
        ("redis://h?socket_connect_timeout=soon", "value for socket_connect_timeout"),
        ("redis://h?client_name=a%20b", "value for client_name"),
        ("redis://h?client_name=", "value for client_name"),
        ("redis://h?sentinel_password=x", "no sentinels"),
        ("redis://a..b", "no valid name"),
        ("redis://h%26password%3Dsecret", "no valid name"),
        ("redis+cluster://h1,x=y", "no valid name"),
        ("redis://h&password=secret", "an option in front of its [?]: write [?] before the first option"),
        ("redis://h/0&db=1", "in front of its [?]"),
        ("redis+sentinel://h/m;password=secret", "in front of its [?]"),
        ("redis+sentinel://h,password=secret/m", "in front of its [?]"),
        ("unix:///run/s&db=1", "in front of its [?]"),
        ("redis://h%00", "no valid name"),
        ("redis://" + "h" * 64, "no valid name"),
        ("unix:///run/a%0ab", "full path"),
        ("redis://h /0", "space or a control"),
        ("redis://h/0\n", "space or a control"),
    ],
)
def test_what_cannot_be(url: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as error:
        parse(url)
    assert "\n" not in str(error.value)
    assert "secret" not in str(error.value)


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
        ("unix:///me:se/cr?et@/run/s", "unix:///me:***@/run/s"),
        ("redis+sentinel://:secret@h1,h2/m", "redis+sentinel://:***@h1,h2/m"),
        # An option behind a password is shown if it can be one, and not the rest of the password.
        ("redis://h?password=se&cret", "redis://h?password=***&***"),
        ("redis://h?password=se&cr=et", "redis://h?password=***&***"),
        ("redis://h?password=se&client_name=x&db=cret", "redis://h?password=***&client_name=x&***"),
        ("redis://h?password=se&durability=cret", "redis://h?password=***&***"),
        ("redis://h?password=se&socket_timeout=cret#", "redis://h?password=***&***"),
        ("redis://h?password=se&passcret=x", "redis://h?password=***&***"),
        ("redis+sentinel://h/m?sentinel_password=se&cret=", "redis+sentinel://h/m?sentinel_password=***&***"),
        ("redis://h?db=1&password=se@cret", "redis://***@***"),
        # The value of an option that is not known is hidden: it may be a password, misspelt.
        ("redis://h?pasword=secret&db=1", "redis://h?pasword=***&db=1"),
        ("redis://h?pwd=se&cret=1", "redis://h?pwd=***&***"),
        ("redis://h?secret", "redis://h?***"),
        ("redis://h?client_name=a;password=secret", "redis://h?client_name=***"),
        ("redis://h&pwd=secret", "redis://h&pwd=***"),
        ("localhost:6379,password=secret,ssl=true", "localhost:***"),
        ("redis://h,password=se@cret", "redis://***@***"),
        ("redis://h%3Fpassword%3Dsecret", "redis://***"),
        # A host that cannot be one may be a password that lacks its @.
        ("redis://me:se/cret", "redis://me:***"),
        ("redis://h1:1,me:secret", "redis://h1:***"),
        ("redis://me:secret%40h/0", "redis://me:***"),
        ("redis://secret%40h/0", "redis://***"),
        ("redis%3A%2F%2Fme%3Asecret%40h", "***"),
        ("redis://me:se%40cret@h:1/0", "redis://me:***@h:1/0"),
        ("redis://[::1]:7000,h", "redis://[::1]:7000,h"),
        ("embedded:a%3Fb:c@d?durability=fsync", "embedded:a%3Fb:c@d?durability=fsync"),
        ("embedded:a?password=secret&x=y", "embedded:a?password=***&***"),
        ("embedded:a?secret", "embedded:a?***"),
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


def told(url: str) -> str:
    """What is shown of a URL that was read, or could not be."""
    try:
        return repr(parse(url))
    except ConfigurationError as error:
        return f"{error} {error.__cause__}"


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
    assert SECRET not in told(url)
    assert SECRET not in redacted(url)


@given(
    scheme=st.sampled_from(["redis", "rediss", "unix", "redis+sentinel", "reddis", "embedded", "x"]),
    place=st.sampled_from(["://h:1/0", "://h/m", ":///run/s", ":h", "://u:p@h", "://u@h1,h2/m", "://h:x"]),
    first=st.sampled_from(["?", "?db=1&", "?client_name=a&", "?nonsense&", "&", "?&"]),
    name=st.sampled_from(["password", "sentinel_password", "p%61ssword", "PASSWORD", "passwd", "pwd", "x"]),
    around=st.tuples(*[st.text("ab12/?#@:%[] \n=&;,+", max_size=6)] * 2),
)
def test_no_message_holds_a_password_from_an_option(
    scheme: str, place: str, first: str, name: str, around: tuple[str, str]
) -> None:
    """Nor what is left of it behind a sign that was not encoded."""
    url = f"{scheme}{place}{first}{name}={SECRET.join(around)}"
    # Without a ? it would be part of a folder, or all in front of an @ would be a password.
    assume(first != "&" or (scheme != "embedded" and "@" not in around[0] + around[1]))
    assert SECRET not in told(url)
    assert SECRET not in redacted(url)


@given(
    text=st.text(st.sampled_from("%25Ff3 &=#/."), max_size=12),
    query=st.sampled_from(["", "?durability=fsync"]),
)
def test_a_folder_in_full_is_the_same_folder(text: str, query: str) -> None:
    url = f"embedded:state{text}{query}"
    assert parse(absolute(url)) == parse(url)
    assert absolute(absolute(url)) == absolute(url)


def test_a_user_without_a_password_is_not_shown() -> None:
    """Most likely it is the password, and the colon was forgotten."""
    assert "secret" not in repr(parse("redis://secret@h"))
    assert "username='me'" in repr(parse("redis://me:secret@h"))


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
        ("timeout=0", "timeout is 0.001 to 3600 seconds"),
        ("replicas=1,replicas=0", "says replicas twice"),
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
        "unix:///nowhere/s",
        "embedded:/nowhere/s",
    ):
        url = f"{place}?durability={durability}"
        with pytest.raises(ConfigurationError, match=words) as error:
            percolator.connect(url, "n")
        assert "\n" not in str(error.value)
        assert "canary" not in str(error.value)
