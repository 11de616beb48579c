from typing import Any

import pytest

from engine.text.template_sandbox import TemplateError, compile_template, render

MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]


def run(source: str, **variables: Any) -> str:
    return render(compile_template(source), {"messages": MESSAGES, **variables})


def test_loops_know_their_position_and_length():
    source = (
        "{% for m in messages %}{{ loop.index }}/{{ loop.length }}{{ ',' if not loop.last }}"
        "{% else %}none{% endfor %}"
    )

    assert run(source) == "1/2,2/2"
    assert run(source, messages=[]) == "none"


def test_break_continue_namespaces_and_macros_work():
    source = (
        "{% set ns = namespace(n=0) %}"
        "{% macro show(x) %}[{{ x }}]{% endmacro %}"
        "{% for i in range(10) %}{% if i == 1 %}{% continue %}{% endif %}"
        "{% if i == 4 %}{% break %}{% endif %}{% set ns.n = ns.n + i %}{{ show(i) }}{% endfor %}"
        "{{ ns.n }}{% set kept %}a{{ ns.n }}{% endset %}{{ kept }}{% set a, b = 1, 2 %}{{ a + b }}"
    )

    assert run(source) == "[0][2][3]5a53"


def test_blocks_are_trimmed_and_generation_blocks_are_transparent():
    assert run("  {% if true %}\nx\n  {% endif %}\n{% generation %}y{% endgeneration %}") == "x\ny"


def test_json_is_not_escaped_for_html_and_takes_options():
    value = {"b": "<é>", "a": "\x7f😀"}

    assert run("{{ v | tojson }}", v=value) == '{"b": "<é>", "a": "\x7f😀"}'
    assert (
        run("{{ v | tojson(ensure_ascii=true, sort_keys=true) }}", v=value)
        == '{"a": "\\u007f\\ud83d\\ude00", "b": "<\\u00e9>"}'
    )


def test_the_date_can_be_asked_for():
    assert run("{{ strftime_now('%Y') | int > 2000 }}") == "True"


def test_a_template_may_refuse_a_chat():
    with pytest.raises(TemplateError, match="refuses this chat: roles must alternate"):
        run("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ cycler.__init__.__globals__.os.popen('touch S') }}",
        "{{ messages.__class__.__mro__ }}",
        "{{ (messages | attr('__class__')).__base__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{% include '/etc/passwd' %}",
        "{{ lipsum(1000) }}",
    ],
)
def test_python_is_out_of_reach(source: str):
    with pytest.raises(TemplateError, match="chat template failed"):
        run(source)


@pytest.mark.parametrize(
    "source", ["{{ 'x'.format.__globals__ }}", "{{ '{0.__class__}'.format(messages) }}"]
)
def test_what_is_hidden_reads_as_nothing(source: str):
    assert run(source) == ""


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(1000) %}{% for b in range(1000) %}{% for c in range(1000) %}"
        "{% endfor %}{% endfor %}{% endfor %}",
        "{% for a in range(1000000000) %}{% endfor %}",
        "{% for a in 'x' * 1000000000 %}{% endfor %}",
        "{{ [0] * 1000000000 }}",
        "{{ range(1000000000) | list | length }}",
        "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for a in many %}{% for b in many %}{% for c in many %}"
        "{% endfor %}{% endfor %}{% endfor %}",
    ],
)
def test_work_is_bounded(source: str):
    with pytest.raises(TemplateError, match=r"200000 steps|maximum recursion"):
        run(source, many=list(range(1000)))


@pytest.mark.parametrize(
    "source",
    [
        "{% set ns = namespace(t='xxxxxxxx') %}{% for a in range(60) %}{% set ns.t = ns.t ~ ns.t %}"
        "{% endfor %}",
        "{% set ns = namespace(t='xxxxxxxx') %}{% for a in range(60) %}"
        "{% set ns.t %}{{ ns.t }}{{ ns.t }}{% endset %}{% endfor %}",
        "{{ 'x'.center(50000000) }}",
        "{{ 10 ** 1000000000 }}",
        "{% for a in range(50) %}{{ big }}{% endfor %}",
    ],
)
def test_size_is_bounded(source: str):
    with pytest.raises(TemplateError, match=r"characters|exponent"):
        run(source, big="x" * 100_000)


@pytest.mark.parametrize(
    "source", ["{{ messages[0] + 1 }}", "{{ 1 / 0 }}", "{{ messages[0].content.x.y }}"]
)
def test_what_goes_wrong_inside_is_one_kind_of_error(source: str):
    with pytest.raises(TemplateError, match="the model's chat template failed"):
        run(source)


def test_each_rendering_has_its_own_budget():
    template = compile_template("{% for a in range(90000) %}{% endfor %}done")

    assert [render(template, {}) for _ in range(3)] == ["done"] * 3
