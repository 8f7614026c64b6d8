"""A picture in a data URL keeps its place, its bytes and its own size; anything else is a 400 that names the field."""

import base64
import hashlib
import io
import json
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayzero.api.body import decode
from dayzero.api.chat.conversation import conversation
from dayzero.api.chat.request import decoder
from dayzero.api.contracts import MOONSHOT, OPENAI
from dayzero.api.pictures import MAX_SIDE_PX, picture
from dayzero.errors import InvalidRequestError
from dayzero.frontend.conversation import Image, Text


def png(width, height):
    """Valid, of one colour."""

    def chunk(kind, content):
        checked = kind + content
        return struct.pack(">I", len(content)) + checked + struct.pack(">I", zlib.crc32(checked))

    rows = zlib.compress((b"\0" + b"\x7f" * width) * height)
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def made(kind, width, height, **options):
    """By an encoder of the field."""
    pil = pytest.importorskip("PIL.Image")
    out = io.BytesIO()
    pil.new("RGB", (width, height), (9, 99, 199)).save(out, kind, **options)
    return out.getvalue()


def url(content, kind="png"):
    return f"data:image/{kind};base64," + base64.b64encode(content).decode()


def test_a_png_is_read_without_decoding_it():
    content = png(17, 5)
    image = picture(url(content), "p")
    assert (image.width_px, image.height_px, image.mime_type) == (17, 5, "image/png")
    assert image.content == content
    assert image.digest == hashlib.sha256(content).digest()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("png", {}),
        ("gif", {}),
        ("jpeg", {}),
        ("jpeg", {"progressive": True, "comment": b"x" * 5000}),
        ("webp", {}),
        ("webp", {"lossless": True}),
        ("webp", {"exif": b"Exif\0\0abcd"}),
    ],
)
def test_every_kind_has_the_size_that_its_encoder_gave_it(kind, options):
    for width, height in ((1, 1), (300, 7), (13, 2049)):
        image = picture(url(made(kind, width, height, **options), "png"), "p")
        assert (image.width_px, image.height_px) == (width, height)
        assert image.mime_type == f"image/{kind}"


@pytest.mark.parametrize(
    "bad",
    [
        "https://example.org/x.png",
        "file:///etc/passwd",
        "data:text/html;base64,aGk=",
        "data:image/png,raw",
        "data:image/png;base64,not base64!",
        "data:image/png;base64,",
        url(b"no picture"),
        url(png(3, 3)[:20]),
        url(png(0, 3)),
        url(png(MAX_SIDE_PX + 1, 3)),
        url(b"GIF89a\x01"),
        url(b"\xff\xd8\xff\xe0\x00\x02"),
        url(b"\xff\xd8" + b"\xff\xe0\x00\x00" * 1000),
        url(b"RIFF\0\0\0\0WEBPVP8X\0"),
        url(b"RIFF\0\0\0\0WEBPVP9 " + b"\0" * 40),
        "",
    ],
)
def test_what_is_no_picture_here_is_refused_by_field(bad):
    with pytest.raises(InvalidRequestError) as refused:
        picture(bad, "messages[0].content[1].image_url.url")
    assert refused.value.status == 400
    assert refused.value.param == "messages[0].content[1].image_url.url"


@given(
    st.sampled_from(
        [b"\x89PNG\r\n\x1a\n", b"GIF89a", b"\xff\xd8", b"\xff\xd8\xff\xc0", b"RIFF\0\0\0\0WEBPVP8X", b"RIFF\0\0\0\0WEBPVP8 ", b""]
    ),
    st.binary(max_size=60),
)  # fmt: skip
def test_any_bytes_are_a_picture_or_a_400(magic, rest):
    try:
        image = picture(url(magic + rest), "p")
    except InvalidRequestError as refused:
        assert refused.param == "p"
    else:
        assert 0 < image.width_px <= MAX_SIDE_PX
        assert 0 < image.height_px <= MAX_SIDE_PX


@pytest.mark.parametrize("role", ["user", "tool"])
def test_pictures_keep_their_place_between_texts(role):
    parts = [
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {"url": url(png(2, 3))}},
        {"type": "text", "text": "b"},
    ]
    messages = [
        {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f"}}]},
        {"role": role, "content": parts} | ({"tool_call_id": "c"} if role == "tool" else {}),
    ]
    request = decode(json.dumps({"model": "m", "messages": messages}).encode(), decoder)
    content = conversation(request, MOONSHOT).messages[1].content
    assert [type(part) for part in content] == [Text, Image, Text]
    with pytest.raises(InvalidRequestError) as refused:
        conversation(request, OPENAI)
    assert refused.value.param == "messages[1].content[1]"
