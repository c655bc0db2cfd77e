"""Access tokens: which are refused. Signatures have their own tests."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.security.jwks import (
    Ed25519Key,
    KeySet,
    RsaKey,
    VerificationKey,
    parse_jwks,
)
from penstock.security.jws import MAX_TOKEN_BYTES, InvalidToken, parse_jws
from penstock.security.resources import Principal
from penstock.security.tokens import (
    AccessToken,
    TokenSettings,
    UnknownKey,
    check_claims,
    verify_token,
)
from tests.unit.security.token_making import (
    CLAIMS,
    ED25519_JWK,
    ISSUER,
    NOW_S,
    P256_JWK,
    P521_JWK,
    RSA_JWK,
    accept_good,
    encoded,
    jwks,
    token,
)

SETTINGS = TokenSettings(ISSUER, frozenset({"penstock", "other"}))
KEYS = parse_jwks(jwks({**ED25519_JWK, "kid": "k1"}, {**RSA_JWK, "kid": "k2"}))
NOW_MS = NOW_S * 1000


def verify(data: bytes, settings: TokenSettings = SETTINGS, now_ms: int = NOW_MS) -> AccessToken:
    return verify_token(data, KEYS, accept_good, settings, now_ms)


def with_claims(**changes: Any) -> dict[str, Any]:
    """Return good claims with changes. None leaves a claim out."""
    return {name: value for name, value in {**CLAIMS, **changes}.items() if value is not None}


def test_a_good_token() -> None:
    assert verify(token(with_claims(scope="read write"))) == AccessToken(
        Principal("User", "alice"), (NOW_S + 630) * 1000, frozenset({"read", "write"})
    )


@pytest.mark.parametrize(
    "header",
    [
        {"alg": "none", "kid": "k1"},
        {"alg": "HS256", "kid": "k1"},
        {"alg": "RS256", "kid": "k1"},  # k1 is an Ed25519 key
        {"alg": "EdDSA", "kid": "k2"},
        {"alg": "ES256"},
        {"alg": "eddsa", "kid": "k1"},
        {"alg": ["EdDSA"], "kid": "k1"},
        {"kid": "k1"},
        {"alg": "EdDSA", "kid": 1},
        {"alg": "EdDSA", "kid": ""},
        {"alg": "EdDSA", "kid": "k1", "crit": ["exp"]},
        {"alg": "EdDSA", "kid": "k1", "b64": False},
        b'{"alg":"EdDSA","alg":"EdDSA","kid":"k1"}',
        b'["EdDSA"]',
        b"{",
        b"\xff",
    ],
)
def test_bad_headers_are_refused(header: dict[str, Any] | bytes) -> None:
    with pytest.raises(InvalidToken):
        verify(token(header=header))


def test_keys_of_the_header_are_not_looked_at() -> None:
    own = {"jwk": ED25519_JWK, "jku": "https://evil.example", "x5u": "https://evil.example"}
    verify(token(header={"alg": "EdDSA", "kid": "k1", **own}))
    with pytest.raises(UnknownKey) as caught:
        verify(token(header={"alg": "EdDSA", "kid": "evil", **own}))
    assert caught.value.key_id == "evil"


def test_a_token_without_key_id_is_tried_with_the_keys_of_its_algorithm() -> None:
    tried = []

    def note(key: VerificationKey, *_: object) -> bool:
        tried.append(key.key_id)
        return False

    with pytest.raises(InvalidToken, match="signature"):
        verify_token(token(header={"alg": "EdDSA"}), KEYS, note, SETTINGS, NOW_MS)
    assert tried == ["k1"]
    many = KeySet(tuple(VerificationKey(None, ("EdDSA",), Ed25519Key(b"%d" % n)) for n in range(9)))
    tried.clear()
    with pytest.raises(InvalidToken, match="signature"):
        verify_token(token(header={"alg": "EdDSA"}), many, note, SETTINGS, NOW_MS)
    assert len(tried) == 4


@pytest.mark.parametrize(
    "changes",
    [
        {"iss": None},
        {"iss": ISSUER + "/"},
        {"iss": [ISSUER]},
        {"aud": None},
        {"aud": "else"},
        {"aud": []},
        {"aud": ["else"]},
        {"aud": ["penstock", 1]},
        {"aud": {"penstock": 1}},
        {"exp": None},
        {"exp": str(NOW_S + 600)},
        {"exp": True},
        {"exp": NOW_S - 30},
        {"exp": -1},
        {"exp": 1e300},
        {"exp": NOW_S - 20, "iat": NOW_S - 10},
        {"iat": None},
        {"iat": NOW_S + 31, "exp": NOW_S + 90},
        {"iat": "now"},
        {"nbf": NOW_S + 31},
        {"nbf": "now"},
        {"sub": None},
        {"sub": ""},
        {"sub": "  "},
        {"sub": 7},
        {"sub": ["alice"]},
        {"sub": "a\nb"},
        {"sub": "a\0b"},
        {"sub": "x" * 257},
        {"sub": "\ud800"},
        {"scope": 7},
        {"scope": ["read", 7]},
    ],
)
def test_bad_claims_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidToken):
        verify(token(with_claims(**changes)))


@pytest.mark.parametrize(
    "changes",
    [
        {"aud": ["else", "other"]},
        {"exp": NOW_S - 29, "iat": NOW_S - 90},
        {"exp": NOW_S + 0.5},
        {"iat": NOW_S + 29},
        {"nbf": NOW_S + 30},
        {"sub": "CN=älice,O=x"},
        {"scope": ["read"]},
        {"unknown": {"deep": [1, 2]}},
    ],
)
def test_claims_within_the_rules_are_accepted(changes: dict[str, Any]) -> None:
    assert verify(token(with_claims(**changes))).principal.kind == "User"


def test_settings_choose_the_claims() -> None:
    settings = TokenSettings(
        None, frozenset(), clock_skew_s=0, sub_claim="name", scope_claim="scp", groups_claim="grp"
    )
    claims = with_claims(iss=None, aud=None, name="bob", scp="a b", grp=["dev", "ops", "dev"])
    assert check_claims(claims, settings, NOW_MS) == AccessToken(
        Principal("User", "bob"),
        (NOW_S + 600) * 1000,
        frozenset({"a", "b"}),
        (Principal("Group", "dev"), Principal("Group", "ops")),
    )
    assert check_claims({**claims, "grp": "dev"}, settings, NOW_MS).groups == (
        Principal("Group", "dev"),
    )
    for groups in (7, [7], ["x"] * 201, [""]):
        with pytest.raises(InvalidToken):
            check_claims({**claims, "grp": groups}, settings, NOW_MS)
    with pytest.raises(InvalidToken, match="expired 0 s ago"):
        check_claims(claims, settings, (NOW_S + 600) * 1000)


# Form --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"a.b",
        b"..",
        token() + b".",
        token() + b".e30.e30",  # five parts: an encrypted token
        b" " + token(),
        token() + b"\n",
        token().replace(b".", b"=.", 1),
        token(claims=b'{"sub":"a","sub":"b"}'),
        token(claims=b'{"exp":NaN}'),
        token(claims=b"[" * 5000),
        token(claims=b"7"),
        token(claims=b'{"exp":' + b"9" * 5000 + b"}"),
        token(signature=b""),
        b"x" * (MAX_TOKEN_BYTES + 1),
    ],
)
def test_bad_forms_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidToken) as caught:
        verify(data)
    assert "alice" not in str(caught.value)


def test_spare_bits_are_refused() -> None:
    """`YQ` and `YR` decode to the same byte in lenient decoders."""
    header, claims, _ = token().split(b".")
    assert parse_jws(b".".join((header, claims, b"YQ"))).signature == b"a"
    with pytest.raises(InvalidToken, match="canonical"):
        parse_jws(b".".join((header, claims, b"YR")))


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_without_another_error(data: bytes) -> None:
    with pytest.raises(InvalidToken):
        verify(data)


@given(st.data())
def test_no_changed_byte_of_a_signed_part_reaches_the_claims(data: st.DataObject) -> None:
    """The signing input is what was sent, byte for byte, so that a real signature covers it."""
    good = token()
    position = data.draw(st.integers(0, len(good) - 1))
    changed = bytearray(good)
    changed[position] = data.draw(st.integers(0, 255))
    try:
        jws = parse_jws(bytes(changed))
    except InvalidToken:
        return
    assert jws.signing_input + b"." + encoded(jws.signature).encode() == bytes(changed)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from([*CLAIMS, "nbf", "scope", "x"]), inner, max_size=4)
        ),
        max_leaves=8,
    )
)
def test_any_claims_give_a_principal_or_invalid_token(claims: object) -> None:
    try:
        found = verify(token(json.dumps(claims).encode()))
    except InvalidToken:
        return
    assert found.principal.name


# Key sets ----------------------------------------------------------------------------------------


def test_keys_have_the_algorithms_of_their_kind() -> None:
    keys = parse_jwks(jwks(RSA_JWK, P256_JWK, P521_JWK, ED25519_JWK)).keys
    assert [key.algorithms for key in keys] == [
        ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
        ("ES256",),
        ("ES512",),
        ("EdDSA", "Ed25519"),
    ]


def test_a_key_with_an_algorithm_has_only_that() -> None:
    (key,) = parse_jwks(jwks({**RSA_JWK, "alg": "PS256", "use": "sig", "key_ops": ["verify"]})).keys
    assert key.algorithms == ("PS256",)
    assert isinstance(key.public, RsaKey)


@pytest.mark.parametrize(
    "entry",
    [
        {"kty": "oct", "k": "AAAA"},
        {**RSA_JWK, "alg": "HS256"},
        {**RSA_JWK, "alg": "none"},
        {**RSA_JWK, "alg": 7},
        {**RSA_JWK, "use": "enc"},
        {**RSA_JWK, "key_ops": ["sign"]},
        {**RSA_JWK, "kid": 7},
        {**RSA_JWK, "n": encoded(b"\xff" * 128)},  # 1024 bits
        {**RSA_JWK, "n": encoded(b"\xff" * 2049)},
        {**RSA_JWK, "n": encoded(b"\xff" * 255 + b"\xfe")},  # even
        {**RSA_JWK, "e": "AQ"},
        {**RSA_JWK, "e": encoded(b"\xff" * 9)},
        {**RSA_JWK, "n": 7},
        {"kty": "RSA"},
        {**P256_JWK, "crv": "secp256k1"},
        {**P256_JWK, "crv": ["P-256"]},
        {**P256_JWK, "x": encoded(b"x" * 31)},
        {**P256_JWK, "alg": "ES512"},
        {**ED25519_JWK, "crv": "X25519"},
        {**ED25519_JWK, "x": encoded(b"x" * 33)},
        "key",
        None,
    ],
)
def test_keys_that_cannot_be_used_are_left_out(entry: Any) -> None:
    assert len(parse_jwks(jwks(entry, ED25519_JWK)).keys) == 1
    with pytest.raises(ValueError, match="no key for signatures"):
        parse_jwks(jwks(entry))


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{}", b'{"keys":7}', b'{"keys":[],"keys":[]}', b"\xff", jwks(*[{}] * 101)],
)
def test_damaged_key_sets_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"key set"):
        parse_jwks(data)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just("AQAB"),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


@given(
    st.sampled_from([RSA_JWK, P256_JWK, P521_JWK, ED25519_JWK]),
    st.dictionaries(
        st.sampled_from(["kty", "n", "e", "crv", "x", "y", "use", "key_ops", "alg", "kid"]),
        json_values,
        max_size=3,
    ),
)
def test_any_entry_is_a_key_or_left_out(entry: dict[str, Any], changes: dict[str, Any]) -> None:
    keys = parse_jwks(jwks({**entry, **changes}, ED25519_JWK))
    assert 1 <= len(keys.keys) <= 2
