"""Names of certificates and mapping rules, against Java, OpenSSL and Kafka's documented examples."""

import re
import shutil
import ssl
import subprocess
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.security.distinguished_names import (
    InvalidCertificate,
    certificate_subject,
    distinguished_name,
)
from penstock.security.mapping_rules import MappingRules, NoMatchingRule

OIDS = {
    "CN": "550403",
    "C": "550406",
    "L": "550407",
    "ST": "550408",
    "STREET": "550409",
    "O": "55040a",
    "OU": "55040b",
    "DC": "0992268993f22c640119",
    "UID": "0992268993f22c640101",
    "2.5.4.5": "550405",  # serialNumber
    "1.2.840.113549.1.9.1": "2a864886f70d010901",  # emailAddress
}
UTF8, PRINTABLE, T61, IA5, GENERAL, BMP = 0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E


def element(tag: int, content: bytes) -> bytes:
    size = len(content)
    return (
        bytes([tag]) + (bytes([size]) if size < 128 else b"\x82%c%c" % divmod(size, 256)) + content
    )


def attribute(kind: str, value: str | bytes, tag: int = UTF8) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return element(0x30, element(6, bytes.fromhex(OIDS[kind])) + element(tag, data))


def name(*parts: list[bytes]) -> bytes:
    return element(0x30, b"".join(element(0x31, b"".join(part)) for part in parts))


@pytest.mark.parametrize(
    ("der", "text"),
    [
        (name(), ""),
        (name([attribute("C", "DE", PRINTABLE)], [attribute("CN", "alice")]), "CN=alice,C=DE"),
        (name([attribute("CN", "a"), attribute("UID", "b")]), "CN=a+UID=b"),
        (name([attribute("CN", "admin,OU=x")]), r"CN=admin\,OU\=x"),
        (name([attribute("CN", ' a "b" ')]), r"CN=\ a \"b\"\ "),
        (name([attribute("CN", "   ")]), r"CN=\ \ \ "),
        (name([attribute("CN", "#a;<b>\\")]), r"CN=\#a\;\<b\>\\"),
        (name([attribute("CN", "a\0b")]), r"CN=a\00b"),
        (name([attribute("CN", "Zoë 𝄞")]), "CN=Zoë 𝄞"),
        (
            name([attribute("1.2.840.113549.1.9.1", "a@b", IA5)]),
            "1.2.840.113549.1.9.1=#1603614062",
        ),
        (name([attribute("CN", b"\1", 0x02)]), "CN=#020101"),  # no text
    ],
)
def test_names_have_javas_form(der: bytes, text: str) -> None:
    assert distinguished_name(der) == text


@given(st.binary(max_size=120))
def test_any_bytes_are_a_name_or_refused(data: bytes) -> None:
    for read in (distinguished_name, certificate_subject):
        try:
            read(data)
        except InvalidCertificate:
            pass


@given(st.data())
def test_a_damaged_name_is_read_or_refused(data: st.DataObject) -> None:
    der = bytearray(name([attribute("CN", "alice"), attribute("O", "x")], [attribute("DC", "y")]))
    position = data.draw(st.integers(0, len(der) - 1))
    der[position] = data.draw(st.integers(0, 255))
    try:
        distinguished_name(bytes(der))
    except InvalidCertificate:
        pass


def test_the_number_of_attributes_is_limited() -> None:
    with pytest.raises(InvalidCertificate, match="more than 64"):
        distinguished_name(name(*[[attribute("CN", "x")]] * 65))


# Judges ------------------------------------------------------------------------------------------

JAVA_PROGRAM = """
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.util.HexFormat;
import javax.security.auth.x500.X500Principal;

public class Names {
    public static void main(String[] arguments) throws Exception {
        for (String line : Files.readAllLines(Path.of(arguments[0]))) {
            String name = new X500Principal(HexFormat.of().parseHex(line)).getName();
            System.out.println(HexFormat.of().formatHex(name.getBytes(StandardCharsets.UTF_8)));
        }
    }
}
"""


def random_name(random: Random) -> bytes:
    def value() -> tuple[bytes, int]:
        characters = ' ,=+<>#;"\\abcZ09\r\n\0é€ \tü𝄞/*'
        text = "".join(random.choice(characters) for _ in range(random.randrange(8)))
        tag = random.choice([UTF8, UTF8, PRINTABLE, T61, IA5, GENERAL, BMP])
        codec = {UTF8: "utf-8", BMP: "utf-16-be", T61: "latin-1"}.get(tag, "ascii")
        return text.encode(codec, "replace"), tag

    return name(
        *(
            [
                attribute(random.choice(list(OIDS)), *value())
                for _ in range(random.choice([1, 1, 2]))
            ]
            for _ in range(random.randrange(4))
        )
    )


@pytest.mark.slow
def test_names_are_what_java_prints(tmp_path: Path) -> None:
    java = shutil.which("java")
    if java is None:
        pytest.skip("needs java")
    random = Random(1)
    names = [random_name(random) for _ in range(2000)]
    (tmp_path / "Names.java").write_text(JAVA_PROGRAM)
    (tmp_path / "names").write_text("\n".join(der.hex() for der in names))
    ran = subprocess.run(
        [java, tmp_path / "Names.java", tmp_path / "names"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    if "jdk.compiler" in ran.stderr:
        pytest.skip("needs a JDK")
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert len(lines) == len(names)
    for der, line in zip(names, lines, strict=True):
        assert distinguished_name(der) == bytes.fromhex(line).decode()


def test_the_subject_of_a_certificate(tmp_path: Path) -> None:
    """OpenSSL makes the certificate. Its own RFC 2253 form agrees where no hex is needed."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs openssl")
    subject = "/C=DE/DC=example/O=Acme, Inc./OU=Tools/UID=7/CN=alice \\+ bob"
    make = "req -x509 -newkey ed25519 -nodes -keyout key.pem -out cert.pem -days 1 -utf8 -subj"
    show = "x509 -in cert.pem -noout -subject -nameopt"

    def run(command: str, last: str) -> str:
        return subprocess.run(
            [openssl, *command.split(), last],
            cwd=tmp_path,
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout

    run(make, subject)
    printed = run(show, "RFC2253,-esc_msb")
    der = ssl.PEM_cert_to_DER_cert((tmp_path / "cert.pem").read_text())
    assert certificate_subject(der) == printed.strip().removeprefix("subject=")
    assert certificate_subject(der) == (
        r"CN=alice \+ bob,UID=7,OU=Tools,O=Acme\, Inc.,DC=example,C=DE"
    )
    for cut in range(0, len(der), 7):
        with pytest.raises(InvalidCertificate):
            certificate_subject(der[:cut])


# Mapping rules. `re` stands in for google-re2, which agrees on these patterns ---------------------

ALICE = "CN=alice,OU=ServiceUsers,O=Unknown,L=Unknown,ST=Unknown,C=Unknown"
KAFKAS_EXAMPLE = (
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,"
    "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,"
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,DEFAULT"
)


def mapped(rules: str, distinguished: str) -> str:
    return MappingRules(rules, re.compile).principal_name(distinguished)


@pytest.mark.parametrize(
    ("distinguished", "principal"),
    [
        ("CN=serviceuser,OU=ServiceUsers,O=Unknown,L=Unknown,ST=Unknown,C=Unknown", "serviceuser"),
        ("CN=adminUser,OU=Admin,O=Unknown,L=Unknown,ST=Unknown,C=Unknown", "adminuser@admin"),
        ("CN=duke,O=x", "duke"),
        ("OU=JavaSoft,O=Sun Microsystems", "OU=JavaSoft,O=Sun Microsystems"),
    ],
)
def test_the_examples_of_kafkas_documentation(distinguished: str, principal: str) -> None:
    assert mapped(KAFKAS_EXAMPLE, distinguished) == principal


@pytest.mark.parametrize(
    ("rules", "principal"),
    [
        ("", ALICE),
        (" DEFAULT ", ALICE),
        ("RULE:CN=(.*?),.*/$1/U", "ALICE"),
        (" RULE:^CN=(\\w+).*$/$1/ , DEFAULT", "alice"),
        ("RULE:^CN=bob.*$/bob/,DEFAULT", ALICE),
        ("RULE:CN=alice/admin/,DEFAULT", ALICE),  # a part of the name is not enough
        ("RULE:^CN=(.*?),OU=(.*?),.*$/$2\\/$1/", "ServiceUsers/alice"),
        ("RULE:^CN=(.*?),.*$/$1@$4/", "alice@$4"),  # a number beyond the groups is text
        ("RULE:^CN=(.*?),.*$/$12/", "alice2"),
        ("RULE:^CN=(.*?),.*$/\\$1/", "$1"),
        ("RULE:^CN=(.*?),.*$/$0/", ALICE),
        ("RULE:^CN=alice(x)?.*$/a$1b/", "ab"),
        ("RULE:.*/x/", "xx"),  # as Java's replaceAll: `.*` matches the empty end as well
        ("RULE:(.*?)/-/", "-" + "".join(f"{char}-" for char in ALICE)),  # as Java
        ("RULE:^.*$//,DEFAULT", ALICE),  # an empty principal is none
    ],
)
def test_rules(rules: str, principal: str) -> None:
    assert mapped(rules, ALICE) == principal


@pytest.mark.parametrize(
    "rules",
    [
        "default",
        "DEFAULT,",
        ",DEFAULT",
        "DEFAULT DEFAULT",
        "DEFAULTX",
        "RULE:",
        "RULE:a",
        "RULE:a/b",
        "RULE:a/b/X",
        "RULE:a/b/LU",
        "RULE:a/b/L RULE:c/d/",
        "RULE:a/b\\",
        "RULE:a/$/",
        "RULE:a/${x}/",
        "RULE:a/$1/",
        ",".join(["DEFAULT"] * 101),
    ],
)
def test_malformed_rules_are_refused(rules: str) -> None:
    with pytest.raises(ValueError, match=r"ssl.principal.mapping.rules|replacement|more than"):
        MappingRules(rules, re.compile)


@given(st.text("RULE:DFAT/,\\$1(.*)CNL ", max_size=40))
def test_any_rules_are_parsed_or_refused(rules: str) -> None:
    try:
        MappingRules(rules, re.compile)
    except (ValueError, re.error):
        pass


def test_a_name_without_a_rule_or_too_long_is_refused() -> None:
    with pytest.raises(NoMatchingRule, match="No rules apply"):
        mapped("RULE:^CN=bob.*$/bob/", ALICE)
    with pytest.raises(NoMatchingRule, match="the limit is 1024"):
        mapped("DEFAULT", "CN=" + "x" * 1022)


def test_a_crafted_value_does_not_look_like_another_name() -> None:
    """A certificate may hold any text in its CN; the comma stays escaped."""
    crafted = distinguished_name(name([attribute("CN", "admin,OU=Admins")], [attribute("O", "x")]))
    assert mapped("RULE:^CN=([a-z]+),OU=Admins.*$/$1/,DEFAULT", crafted) == crafted


# google-re2 --------------------------------------------------------------------------------------


def test_re2_runs_the_rules_in_linear_time() -> None:
    pytest.importorskip("re2")
    assert MappingRules(KAFKAS_EXAMPLE).principal_name(ALICE) == "alice"
    evil = MappingRules("RULE:^(a+)+$/$1/,DEFAULT")
    assert evil.principal_name("a" * 1000 + "b").endswith("b")
    for rules in ("RULE:(?=a)a/b/", "RULE:(a)\\1/b/", "RULE:(/b/"):
        with pytest.raises(ValueError, match="RE2's syntax"):
            MappingRules(rules)
