"""API keys: parsing, matching, roles, files and salts."""

import hashlib
import pickle
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.tenancy import (
    AuthenticationError,
    KeyRing,
    PermissionDeniedError,
    Role,
    ServerSecret,
    StoredKey,
    TenancySetupError,
    Tenant,
    issue_key,
    keys_from_environment,
    load_keys,
    load_or_make_secret,
    new_key,
    secret_from_environment,
)
from dayzero.tenancy.keys import bearer
from dayzero.tenancy.private_file import read_key, write_private

KEYS = {tenant: new_key() for tenant in ("acme", "globex", "initech")}
OPERATOR = new_key()
RING = KeyRing(
    [
        *(StoredKey.of(key, tenant) for tenant, key in KEYS.items()),
        StoredKey.of(OPERATOR, "ops", Role.OPERATOR),
    ]
)


@pytest.mark.parametrize("tenant", KEYS)
def test_a_key_is_its_tenants_wherever_it_stands_in_the_ring(tenant):
    found = RING.authenticate([f"Bearer {KEYS[tenant]}"])
    assert (found.id, found.role) == (tenant, Role.CLIENT)


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "bEaReR"])
@pytest.mark.parametrize("space", [" ", "   "])
def test_the_scheme_may_be_written_in_any_case_and_bytes_are_fine(scheme, space):
    assert bearer([f"{scheme}{space}dz-abc"]) == "dz-abc"
    assert bearer([f" \t{scheme}{space}dz-abc ".encode()]) == "dz-abc"


def test_no_header_is_a_401_that_says_how_to_send_a_key():
    with pytest.raises(AuthenticationError) as caught:
        RING.authenticate([])
    assert caught.value.status == 401
    assert caught.value.openai()["error"] == {
        "message": "You didn't provide an API key. Send it in the header 'Authorization: Bearer YOUR_KEY'.",
        "type": "invalid_request_error",
        "param": None,
        "code": "invalid_api_key",
    }


@pytest.mark.parametrize(
    "value",
    [
        "",
        "Bearer",
        "Bearer ",
        "Basic YTpi",
        KEYS["acme"],
        f"Bearer {KEYS['acme']} more",
        f"Bearer {KEYS['acme']},Bearer {KEYS['acme']}",
        f"Bearer\t{KEYS['acme']}",
        f"Bearer \u00a0{KEYS['acme']}",
        f"Bearer {KEYS['acme']}\n",
        f"Bearer {KEYS['acme']}\x00",
        f"\nBearer {KEYS['acme']}",
        f"Token Bearer {KEYS['acme']}",
        "Bearer " + "a" * 257,
        "Bearer clé",
        "Bearer \ud800",
        b"Bearer \xff",
    ],
)
def test_any_other_header_is_a_401_that_repeats_nothing_of_it(value):
    with pytest.raises(AuthenticationError) as caught:
        RING.authenticate([value])
    assert caught.value.status == 401
    assert KEYS["acme"] not in caught.value.message


def test_two_headers_are_refused_even_where_both_are_right():
    with pytest.raises(AuthenticationError):
        RING.authenticate([f"Bearer {KEYS['acme']}"] * 2)


@pytest.mark.parametrize(
    "spoil", [lambda k: k[:-1], lambda k: k + "a", lambda k: k.swapcase(), lambda k: k[3:]]
)
def test_an_almost_right_key_is_a_401_without_the_key(spoil):
    wrong = spoil(KEYS["acme"])
    with pytest.raises(AuthenticationError) as caught:
        RING.authenticate([f"Bearer {wrong}"])
    assert wrong not in str(caught.value.openai())
    assert caught.value.code == "invalid_api_key"


def test_a_digest_is_no_key():
    with pytest.raises(AuthenticationError):
        RING.authenticate([f"Bearer {hashlib.sha256(KEYS['acme'].encode()).hexdigest()}"])


@given(st.text())
def test_a_parsed_token_is_printable_ascii_without_spaces_or_an_error(text):
    for value in (text, f"Bearer {text}"):
        try:
            token = bearer([value])
        except AuthenticationError:
            continue
        assert token
        assert token.isascii()
        assert token.isprintable()
        assert " " not in token


def test_an_operators_key_is_for_internal_routes_and_a_clients_is_not():
    assert RING.authenticate([f"Bearer {OPERATOR}"], Role.OPERATOR).id == "ops"
    with pytest.raises(PermissionDeniedError) as caught:
        RING.authenticate([f"Bearer {KEYS['acme']}"], Role.OPERATOR)
    assert caught.value.status == 403
    with pytest.raises(PermissionDeniedError):
        RING.authenticate([f"Bearer {OPERATOR}"])


def test_nothing_that_is_shown_holds_a_key():
    stored = StoredKey.of(KEYS["acme"], "acme")
    tenant = RING.authenticate([f"Bearer {KEYS['acme']}"])
    shown = repr((RING, stored, stored.line, tenant, ServerSecret(b"s" * 32)))
    assert KEYS["acme"] not in shown
    assert KEYS["acme"][3:] not in shown
    assert "sss" not in shown


def test_keys_are_long_different_and_recognisable():
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(key.startswith("dz-") and len(key) == 46 for key in keys)


def test_an_issued_key_works_and_the_file_is_its_owners_and_holds_no_key(tmp_path):
    path = tmp_path / "run" / "keys"
    first = issue_key(path, "acme")
    second = issue_key(path, "ops", Role.OPERATOR)
    ring = load_keys(path)
    assert ring.authenticate([f"Bearer {first}"]).id == "acme"
    assert ring.authenticate([f"Bearer {second}"], Role.OPERATOR).id == "ops"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert first not in path.read_text()
    assert [p.name for p in path.parent.iterdir()] == ["keys"]


def test_a_key_file_that_others_may_read_is_refused_with_the_command_that_mends_it(tmp_path):
    path = tmp_path / "keys"
    issue_key(path, "acme")
    path.chmod(0o640)
    with pytest.raises(TenancySetupError, match="chmod 600"):
        load_keys(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no key"),
        ("# nothing\n\n", "holds no key"),
        ("dz-secretsecret acme client\n", ":1: expected sha256:"),
        (f"\nsha256:{'0' * 63} acme\n", ":2: expected sha256:"),
        (f"sha256:{'0' * 64}\n", "expected 'sha256:DIGEST TENANT"),
        (f"sha256:{'0' * 64} Acme client\n", "expected 'sha256:DIGEST TENANT"),
        (f"sha256:{'0' * 64} acme client more\n", "expected 'sha256:DIGEST TENANT"),
        (f"sha256:{'0' * 64} acme root\n", "a role is one of client, operator"),
        (f"sha256:{'0' * 64} acme\nsha256:{'0' * 64} globex\n", "the same key twice"),
        ("clé\n", "not plain ASCII"),
    ],
)
def test_a_key_file_that_says_something_else_is_refused_with_its_line_and_without_its_text(
    tmp_path, text, said
):
    path = tmp_path / "keys"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(TenancySetupError) as caught:
        load_keys(path)
    assert said in str(caught.value)
    assert "secretsecret" not in str(caught.value)


def test_a_kept_key_is_read_without_its_line_end_and_what_is_no_text_is_refused_without_showing_it(tmp_path):
    write_private(tmp_path / "key", b"dz-abc\n")
    assert read_key(tmp_path / "key") == "dz-abc"
    write_private(tmp_path / "key", b"\xffsecret")
    with pytest.raises(TenancySetupError) as refused:
        read_key(tmp_path / "key")
    assert "holds no key" in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_missing_key_file_and_a_folder_say_so(tmp_path):
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(TenancySetupError, match="cannot be read"):
            load_keys(path)


def test_keys_come_from_the_environment_as_digests():
    lines = [StoredKey.of(key, tenant).line for tenant, key in KEYS.items()]
    for separator in (",", "\n", ", \n"):
        ring = keys_from_environment({"DAYZERO_API_KEYS": separator.join(lines)})
        assert ring is not None
        assert ring.authenticate([f"Bearer {KEYS['globex']}"]).id == "globex"
    assert keys_from_environment({}) is None
    with pytest.raises(TenancySetupError, match="holds no key"):
        keys_from_environment({"DAYZERO_API_KEYS": ""})


def test_a_salt_is_the_tenants_and_the_secrets():
    secret, other = ServerSecret(b"a" * 32), ServerSecret(b"b" * 32)
    acme = Tenant("acme", Role.CLIENT, "0")
    same = Tenant("acme", Role.CLIENT, "1")
    globex = Tenant("globex", Role.CLIENT, "0")
    assert secret.cache_salt(acme) == secret.cache_salt(same)
    assert len({secret.cache_salt(acme), secret.cache_salt(globex), other.cache_salt(acme)}) == 3
    assert len(secret.cache_salt(acme)) == 32


def test_a_secret_is_made_once_by_however_many_start_at_once(tmp_path):
    path = tmp_path / "run" / "secret"
    acme = Tenant("acme", Role.CLIENT, "0")
    with ThreadPoolExecutor(8) as pool:
        salts = set(pool.map(lambda _: load_or_make_secret(path).cache_salt(acme), range(16)))
    assert len(salts) == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in path.parent.iterdir()] == ["secret"]
    assert secret_from_environment({"DAYZERO_SECRET": path.read_text()}).cache_salt(acme) in salts
    assert secret_from_environment({}) is None


@pytest.mark.parametrize("text", ["", "abcd", "z" * 64, "é" * 64])
def test_a_short_or_broken_secret_is_refused_without_showing_it(tmp_path, text):
    path = tmp_path / "secret"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(TenancySetupError) as caught:
        load_or_make_secret(path)
    assert not text or text not in str(caught.value).replace(str(path), "")


@pytest.mark.parametrize("kind", [AuthenticationError, PermissionDeniedError, TenancySetupError])
def test_tenancys_errors_pickle(kind):
    copy = pickle.loads(pickle.dumps(kind("what to do")))
    assert (type(copy), copy.openai(), copy.status) == (kind, kind("what to do").openai(), kind.status)
