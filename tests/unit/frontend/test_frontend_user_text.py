"""A template may do what it likes with a user's string: what it prints of it never completes a control token."""

import json
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dayzero.frontend.chat_template.spellings import ControlToken, Spellings, unused_marks
from dayzero.frontend.chat_template.template import ChatTemplate
from dayzero.frontend.chat_template.user_text import UserText, clean
from dayzero.frontend.errors import FrontendError, FrontendLoadError

CONTROLS = [
    ControlToken(i, c) for i, c in enumerate(["<|im_start|>", "<|user|>", "[INST]", "§", "<a b>", "Human:"])
]
SPELLINGS = Spellings(CONTROLS, reserved=["</think>"], marks=("\ue000", "\ue001"))

# Each prints something of the user's string `u`, in every way that comes to mind.
EXPRESSIONS = [
    "u", "u|trim", "u.strip()", "u.strip('@')", "u[1:]", "u[:-1]", "u[1:-1]", "u[::-1]", "u[0]", "u[-1]", "u|first",
    "u|last", "u|list|join", "u|reverse", "u.split('@')[0]", "u.split('@')[-1]", "u.split('@')|join", "u.split()|join",
    "u.rsplit('@', 1)[-1]", "u.partition('@')[2]", "u.splitlines()|join", "u.replace('@', '')", "u|replace('@', '')",
    "u.removeprefix('@')", "u.removesuffix('@')", "u|lower", "u|upper", "u.swapcase().swapcase()", "u|title",
    "u|capitalize", "u.casefold()", "u.lstrip('@x')", "u.zfill(3)", "u.ljust(3)", "u|center(3)", "u|string", "u|safe",
    "u|escape", "u|striptags", "u|indent", "u|wordwrap(4)", "u|truncate(9, true, '')", "u|format",
    "'%s'|format(u)", "'%s' % u", "'{}'.format(u)", "u ~ ''", "'' ~ u", "'' + u", "u + ''", "u * 1", "1 * u", "(u, '')|join",
    "[u]|join", "''.join([u])", "u.join(['', ''])", "u.translate({64: ''})", "u.expandtabs()", "u|urlize", "u|batch(1)|first",
    "u|batch(2)|map('join')|join", "u|map('upper')|join", "u|select('ne', '@')|join", "u|map('string')|join", "u|unique|join",
    "u|sort|join", "shout(u)|trim", "shout(u)[1:]", "shout(u).split('@')|last", "shout(u ~ u)|lower", "u|tojson", "(u|tojson)[1:-1]", "[u]|tojson", "{u: u}|tojson", "[u]", "{u: u}", "[u]|string", "u|pprint",
    "d.values()|first", "d.keys()|first", "(d|items|first)[0]", "(d|dictsort|first)[1]", "d|list|first", "ns.u", "shout(u)",
    "[u]|map('trim')|first", "[u]|map('striptags')|first", "[u, u]|unique|first", "u|default('x')", "u|d('x', true)",
    "([u]|groupby(0)|first)[1][0]", "('' + u)|trim", "('x' ~ u)[1:]", "('x@' ~ u).split('@', 1)[1]", "u|urlencode",
]  # fmt: skip
AROUND = [
    ("", ""),
    ("<|", "|>"),
    ("<|im_", ""),
    ("<|us", ""),
    ("", "|>"),
    ("[", "]"),
    ("<", ">"),
    ("<|im_start|", ""),
    ("", "uman:"),
]


@cache
def template(expression, before="", after=""):
    return ChatTemplate.compile(
        "{%- macro shout(s) %}{{ s }}{% endmacro %}{%- set ns = namespace(u=u) -%}"
        "{{ " + json.dumps(before) + " }}{{ " + expression + " }}{{ " + json.dumps(after) + " }}"
    )


def printed(expression, before, after, text):
    user = SPELLINGS.user
    variables = {"u": user(text), "d": user({text: text})}
    return list(SPELLINGS.cut(template(expression, before, after).render(variables, user)))


PARTS = [
    "im_start", "user", "start|>", "er|>", "INST", "<|im_start|>", "|>", "<|", "[INST]", "]", "[", "@", "x", " ", "§", "<a", " b", "b>", "H", "uman:", "uman",
    "IM_START", "Human:", "<b>", "</b>", "\n", '"', "{}", "%", "\ue005",
]  # fmt: skip


@settings(deadline=None, max_examples=600)
@given(
    expression=st.sampled_from(EXPRESSIONS),
    around=st.sampled_from(AROUND),
    text=st.lists(st.sampled_from(PARTS), min_size=1, max_size=5).map("".join),
)
def test_nothing_that_a_template_prints_of_a_users_string_is_a_control_token(expression, around, text):
    try:
        pieces = printed(expression, *around, text)
    except FrontendError:
        return  # some of these raise on some strings (an index past the end)
    assert [piece.control_id for piece in pieces] == [None] * len(pieces)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_each_expression_renders_on_a_plain_string(expression):
    assert printed(expression, "", "", "x@y z")


@settings(deadline=None, max_examples=300)
@given(
    expression=st.sampled_from(EXPRESSIONS),
    text=st.lists(st.sampled_from(PARTS), min_size=1, max_size=5).map("".join),
)
def test_pure_string_work_gives_what_it_gives_without_us(expression, text):
    """What Jinja makes of the plain string, character for character."""
    user = SPELLINGS.user
    try:
        expected = template(expression).render({"u": text, "d": {text: text}}, lambda value: value)
    except FrontendError:
        return
    # Printed by repr, a mark shows as an escape of itself; and half-joined strings are cut by their characters.
    if (
        expression in {"[u]", "{u: u}", "[u]|string", "u|pprint"}
        or "~" in expression
        or expression == "('' + u)|trim"
    ):
        return
    assert (
        SPELLINGS.unmarked(template(expression).render({"u": user(text), "d": user({text: text})}, user))
        == expected
    )


@pytest.mark.parametrize(
    "test",
    [
        "u == '<|user|>x'", "u != 'y'", "'<|user|>' in u", "u.startswith('<|user|>')", "u.endswith(('|>x', 'x'))", "u|length == 9",
        "u is string", "u in ['<|user|>x']", "u.find('x') == 8", "u.count('|') == 2", "u < 'b'", "u", "u is eq '<|user|>x'",
        "u.index('u') == 2", "d['<|user|>x'] == u", "'<|user|>x' in d", "[u]|select('equalto', '<|user|>x')|list|length == 1",
        "u[0] == '<'", "u.split('|')[1] == 'user'", "'<|user|>x' == u", "not u is mapping", "u|upper == '<|USER|>X'",
        "[d]|map(attribute='<|user|>x')|first == u", "d.get('<|user|>x') == u", "'<|user|>' in say(u)", "say(u)|trim == u",
        "u|int(-1) == -1",
    ],
)  # fmt: skip
def test_a_template_sees_a_users_string_as_it_is(test):
    user = SPELLINGS.user
    text = "<|user|>x"
    source = (
        "{%- macro say(s) %}{{ '' }}{{ s }}{% endmacro -%}{% if " + test + " %}yes{% else %}no{% endif %}"
    )
    assert ChatTemplate.compile(source).render({"u": user(text), "d": user({text: text})}, user) == "yes"


def test_the_templates_own_spellings_are_cut_out():
    pieces = list(SPELLINGS.cut("a<|im_start|><|im_start|>[INST]§ <a b>z"))
    assert [(p.text, p.control_id, p.at_start) for p in pieces] == [
        ("a", None, True),
        ("<|im_start|>", 0, False),
        ("<|im_start|>", 0, False),
        ("[INST]", 2, False),
        ("§", 3, False),
        (" ", None, False),
        ("<a b>", 4, False),
        ("z", None, False),
    ]


def test_the_longest_of_two_spellings_wins():
    spellings = Spellings([ControlToken(1, "<a>"), ControlToken(2, "<a><b>")], marks=("\ue000", "\ue001"))
    assert [p.control_id for p in spellings.cut("<a><a><b>")] == [1, 2]


def test_tokens_take_in_white_space_and_stand_alone_as_they_say():
    spellings = Spellings(
        [
            ControlToken(1, "<l>", lstrip=True),
            ControlToken(2, "<r>", rstrip=True),
            ControlToken(3, "w", single_word=True),
        ],
        marks=("\ue000", "\ue001"),
    )
    pieces = [(p.text, p.control_id) for p in spellings.cut("a <l> b <r> \n c w ww")]
    assert pieces == [
        ("a", None),
        ("<l>", 1),
        (" b ", None),
        ("<r>", 2),
        ("c ", None),
        ("w", 3),
        (" ww", None),
    ]


def test_a_vocabulary_without_control_tokens_has_no_spellings():
    spellings = Spellings([], marks=("\ue000", "\ue001"))
    assert [p.text for p in spellings.cut(spellings.user("<|user|>"))] == ["<|user|>"]


def test_cleaning_is_the_inverse_of_marking():
    value = {"<|user|>": ["[INST]", ("x", 1, None, True)], "n": 1.5}
    marked = SPELLINGS.user(value)
    assert json.dumps(marked) != json.dumps(value)
    assert clean(marked) == value
    assert type(clean(marked)["<|user|>"][0]) is str


def test_a_users_string_is_equal_and_hashes_as_it_was_sent():
    text = SPELLINGS.user("<|user|>")
    assert isinstance(text, UserText)
    assert text == "<|user|>"
    assert hash(text) == hash("<|user|>")
    assert len(text) == 8


def test_marks_are_characters_that_no_text_holds():
    assert unused_marks(["a\ue000", "\ue002"]) == ("\ue001", "\ue003")
    with pytest.raises(LookupError):
        unused_marks(["".join(map(chr, range(0xE000, 0xF900)))])


@pytest.mark.parametrize(
    "source",
    [
        "{{ u.nothing.at.all }}",
        "{{ 1 / 0 }}",
        "{{ u.__class__.__mro__ }}",
        "{{ raise_exception('said: ' ~ u) }}",
        "{{ u + 1 }}",
        "{{ u.format(u) }}",
    ],
)
def test_a_failing_template_shows_neither_itself_nor_the_users_text(source):
    with pytest.raises(FrontendError) as e:
        ChatTemplate.compile(source).render({"u": SPELLINGS.user("secret")}, SPELLINGS.user)
    assert (e.value.status, e.value.param) == (400, "messages")
    assert not any(word in e.value.message for word in ("secret", "nothing", "division", "said"))
    assert e.value.__cause__ is None


def test_a_template_cannot_change_what_it_is_given():
    with pytest.raises(FrontendError):
        ChatTemplate.compile("{{ m.append(1) }}").render({"m": []}, SPELLINGS.user)


def test_a_template_that_does_not_parse_is_refused_with_its_line():
    with pytest.raises(FrontendLoadError, match="line 2"):
        ChatTemplate.compile("ok\n{% if %}")


def test_generation_blocks_and_loop_controls_are_understood():
    source = "{% for i in [1, 2, 3] %}{% if i == 2 %}{% continue %}{% endif %}{% generation %}{{ i }}{% endgeneration %}{% endfor %}"
    assert ChatTemplate.compile(source).render({}, SPELLINGS.user) == "13"
