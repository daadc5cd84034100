import hmac
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.exceptions import HTTPException

from arcforge_core.errors import ConfigError
from arcforge_serving.configs import PagedEngineConfig, ServeConfig
from arcforge_serving.server.gate import auth
from arcforge_serving.server.gate.auth import ADMIN_KEYS, USER_KEYS, Keys, Level, load_keys

ALICE, BOB, ADMIN = "alice-secret", "bob-secret-1", "admin-secret"


def keys(users: str = f"{ALICE},{BOB}", admins: str = ADMIN) -> Keys:
    return load_keys(ServeConfig(PagedEngineConfig()), {USER_KEYS: users, ADMIN_KEYS: admins})


def status(known: Keys, key: str | None, level: Level) -> int:
    try:
        known.owner(None if key is None else f"Bearer {key}", level)
    except HTTPException as error:
        assert error.status_code != 401 or error.headers == {"WWW-Authenticate": "Bearer"}
        return error.status_code
    return 200


@pytest.mark.parametrize(
    ("key", "wanted"),
    [(None, (200, 401, 401)), ("wrong", (200, 401, 401)), (ALICE, (200, 200, 403)), (BOB, (200, 200, 403)),
     (ADMIN, (200, 200, 200)), ("", (200, 401, 401)), (ALICE[:-1], (200, 401, 401)), (ALICE + "x", (200, 401, 401))],
)  # fmt: skip
def test_each_level_wants_its_own_key(key: str | None, wanted: tuple[int, ...]) -> None:
    assert tuple(status(keys(), key, level) for level in Level) == wanted


@pytest.mark.parametrize(
    ("users", "admins", "wanted"),
    [("", "", (200, 200, 403)), ("", ADMIN, (200, 200, 401)), (ALICE, "", (200, 401, 403))],
)
def test_without_keys_of_a_level(users: str, admins: str, wanted: tuple[int, ...]) -> None:
    """Without users' keys everybody may generate; without admins' keys nobody may control."""
    assert tuple(status(keys(users, admins), None, level) for level in Level) == wanted
    for key in (ALICE, ADMIN):
        assert status(keys(users, ""), key, Level.ADMIN) == 403


@pytest.mark.parametrize(
    "header",
    [ALICE, f"Basic {ALICE}", f"Bearer{ALICE}", "Bearer", f"Bearer {ALICE},{BOB}", f"Bearer x {ALICE}", "é"],
)
def test_other_headers_are_no_key(header: str) -> None:
    with pytest.raises(HTTPException) as caught:
        keys().owner(header, Level.USER)
    assert caught.value.status_code == 401
    assert ALICE not in str(caught.value.detail)


def test_the_scheme_is_any_case() -> None:
    assert keys().owner(f"bearer {ALICE}", Level.USER) == keys().owner(f"BEARER  {ALICE}", Level.USER)


def test_owners_differ_by_key_and_show_none() -> None:
    owners = [keys().owner(f"Bearer {key}", Level.USER) for key in (ALICE, BOB, ADMIN)]
    assert len({*owners, ""}) == 4
    assert not any(key in owner for owner in owners for key in (ALICE, BOB, ADMIN))
    assert keys("", "").owner(f"Bearer {ALICE}", Level.USER) == ""  # nobody chooses whose turn he takes


def test_every_key_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []
    original = hmac.compare_digest

    def compare(one: bytes, other: bytes) -> bool:
        compared.append(other)
        return original(one, other)

    known = keys()
    monkeypatch.setattr(auth.hmac, "compare_digest", compare)
    for key in (ALICE, ADMIN):
        compared.clear()
        known.owner(f"Bearer {key}", Level.USER)
        assert sorted(compared) == sorted([*known.users, *known.admins])


def test_no_key_is_kept_or_shown() -> None:
    assert ALICE not in repr(keys()) and ADMIN not in repr(keys())


def test_files_win_over_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# for alice\n{ALICE}\n\n  # and bob\n  {BOB}  \n")
    known = load_keys(
        ServeConfig(PagedEngineConfig(), api_key_file=str(file)), {USER_KEYS: "somebody-else", ADMIN_KEYS: ADMIN}
    )
    assert known == keys()
    admins = load_keys(ServeConfig(PagedEngineConfig(), admin_key_file=str(file)), {})
    assert (admins.users, len(admins.admins)) == ((), 2)


@pytest.mark.parametrize(
    ("users", "field"),
    [("short", USER_KEYS), ("with some spaces", USER_KEYS), ("schlüssel-schlüssel", USER_KEYS),
     (f"{ALICE},tiny", USER_KEYS), ("tab\tinside-it", USER_KEYS), (ADMIN, "admin_key_file"), ("7-signs", USER_KEYS),
     (f"{ALICE},{ADMIN}", "admin_key_file")],
)  # fmt: skip
def test_keys_that_are_none_are_refused_without_being_shown(users: str, field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        keys(users)
    assert caught.value.field == field
    assert not any(key in str(caught.value) for key in users.split(","))


def test_a_key_of_eight_characters_is_one() -> None:
    assert keys("8-signs!").owner("Bearer 8-signs!", Level.USER)


def test_files_without_keys_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("# nothing\n\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for name, reason in (("missing", "cannot be read"), ("empty", "holds no key"), ("binary", "cannot be read")):
        with pytest.raises(ConfigError, match=rf"api_key_file='.*{name}': {reason}"):
            load_keys(ServeConfig(PagedEngineConfig(), api_key_file=str(tmp_path / name)), {USER_KEYS: ALICE})


@given(st.text(max_size=60))
def test_no_header_is_an_error_of_ours(header: str) -> None:
    assert status(keys(), header, Level.OPEN) == 200
    assert status(keys(), header, Level.ADMIN) == 401
