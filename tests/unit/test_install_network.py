"""pip's settings, as pip lists them, become uv's."""

from hypothesis import given
from hypothesis import strategies as st

from scripts.install.network import PipSettings

LISTING = """\
:env:.cert='/etc/certs/env.pem'
:env:.default-timeout='180'
:env:.find-links='/somewhere/wheels'
global.cert='/etc/certs/file.pem'
global.constraint='/etc/constraints.txt'
global.extra-index-url='file:///a/simple file:///b/simple'
global.index-url='https://user:secret@mirror.example/simple'
install.trusted-host='mirror.example\\nother.example'
freeze.all='true'
"""


def test_the_environment_wins_over_pips_configuration_files():
    assert PipSettings.parse(LISTING).options["cert"] == "/etc/certs/env.pem"


def test_uv_gets_every_setting_that_decides_where_packages_come_from():
    assert PipSettings.parse(LISTING).uv_environment({}) == {
        "UV_DEFAULT_INDEX": "https://user:secret@mirror.example/simple",
        "UV_INDEX": "file:///a/simple file:///b/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_INSECURE_HOST": "mirror.example other.example",
        "SSL_CERT_FILE": "/etc/certs/env.pem",
        "UV_HTTP_TIMEOUT": "180",
    }


def test_a_variable_of_uvs_own_is_left_alone():
    assert "UV_DEFAULT_INDEX" not in PipSettings.parse(LISTING).uv_environment({"UV_DEFAULT_INDEX": "mine"})


def test_no_settings_mean_no_variables():
    settings = PipSettings.parse("")
    assert settings.uv_environment({}) == {}
    assert settings.uv_arguments() == []


def test_local_folders_and_pages_go_to_uv_but_a_missing_folder_does_not(tmp_path):
    spaced = tmp_path / "wheel folder"
    spaced.mkdir()
    by_url = f"file://{tmp_path}/wheel%20folder"
    settings = PipSettings({"find-links": f"{by_url} {tmp_path}/gone https://wheels.example/page.html"})
    assert settings.local_folders() == [spaced]
    assert settings.uv_arguments() == [
        "--find-links",
        str(spaced),
        "--find-links",
        "https://wheels.example/page.html",
    ]


def test_no_index_is_passed_on():
    assert PipSettings({"no-index": "true"}).uv_arguments() == ["--no-index"]


@given(st.text())
def test_any_listing_is_read_without_an_error(listing):
    assert isinstance(PipSettings.parse(listing), PipSettings)
