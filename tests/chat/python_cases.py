# SPDX-License-Identifier: Apache-2.0
"""Expressions whose meaning is Python's in detail, and what of characters Python's str knows."""

import itertools
import random
import unicodedata

PLACES = ["-9", "-4", "-3", "-1", "0", "1", "3", "4", "9", "none"]
NUMBER_TEXTS = ["12", " -7 ", "+5", "1_000", "1__0", "_1", "1_", "0x1f", "0X_1f", "0o17", "0b11", "0b2", "0x", "010", "00",
                "٣", "१२३", "１２", "٣.٥", "-٣", "𝟙𝟚", "1e3", "1E-2", ".5", "5.", "1_0.2_5", "1_.5", "inf", "-Infinity", "nan",
                "²", "一", "", " ", "+-5", "--5", "-+5", "+ 5", "z", "1.9", "0_0", "\\u30001\\u3000", "\\x1f1\\x85", "9" * 18,
                "-9223372036854775808", "zz", "0b1", "1\\x00", "1e400", "1e-400"]

CASES = {
    "places": [f"'abc'.{method}({part}, {begin}{end})"
               for method, part in itertools.product(["find", "rfind", "count", "startswith", "endswith", "index", "rindex"],
                                                     ["''", "'c'", "'bc'"])
               for begin in PLACES for end in ("", ", -1", ", 0", ", 3", ", 9")],
    "places of other letters": [f"'éü'.{method}('', {begin})" for method in ("find", "rfind", "count", "startswith", "endswith")
                                for begin in PLACES],
    "numbers in text": [f"{text!r}|{reader}".replace("\\\\", "\\") for text in NUMBER_TEXTS
                        for reader in ("int", "int(7)", "int(base=0)", "int(base=2)", "int(base=8)", "int(base=16)", "int(base=36)",
                                       "int(base=1)", "int(base=37)", "float", "float(2.5)", "int(7, 16)")],
    "whole numbers": ["-9223372036854775808", "- 9223372036854775808", "-9_223_372_036_854_775_808", "-0x8000000000000000",
                      "-9223372036854775808 + 1", "-9223372036854775808|string", "-9223372036854775808 // 2",
                      "[-9223372036854775808]", "-9223372036854775808 is number", "-0", "-9223372036854775807"],
    "formats": ["'%#o' % 8", "'%#X' % 255", "'%#08x' % 255", "'%#x' % 0", "'%x' % -255", "'%#o' % -8", "'%05d' % -3", "'%+d' % 3",
                "'% d' % 3", "'%-5d|' % 3", "'%05.3d' % 5", "'%.3d' % -5", "'%*d' % (4, 7)", "'%-*d|' % (4, 7)", "'%*d|' % (-4, 7)",
                "'%.*f' % (2, 1.23456)", "'%.*f' % (-2, 1.5)", "'%*.*f|' % (8, 2, 3.14159)", "'%*d' % ('4', 7)", "'%*d' % (4,)",
                "'%ld' % 7", "'%hd %Li' % (7, 8)", "'%lld' % 7", "'%a' % 'é日🙂'", "'%.4a' % 'é'", "'%r' % 'é'", "'%c' % 'é'",
                "'%c' % 233", "'%5c|' % 'x'", "'%c' % 'xy'", "'%c' % -1", "'%.0c' % 'x'", "'%(a)s %(b)05d' % {'a': 1, 'b': 2}",
                "'%(a(b))s' % {'a(b)': 1}", "'%(a)s %s' % {'a': 1}", "'%s %(a)s' % {'a': 1}", "'%(a)*d' % {'a': 4}", "'%(z)s' % {'a': 1}",
                "'%(a)s' % [1]", "'%(a)%' % {'a': 1}", "'%5%|' % ()", "'%' % ()", "'%5' % 1", "'%y' % 1", "'%s' % ()", "'%s %s' % (1,)",
                "'x' % (1,)", "'x' % 1", "'x' % [1]", "'x' % {}", "'x' % range(3)", "'x' % none", "'%s' % none", "'%s' % [1, 'a']",
                "'%s' % ((1, 2),)", "'%d' % 3.9", "'%d' % -3.9", "'%d' % true", "'%d' % '3'", "'%x' % 3.0", "'%f' % true", "'%f' % '1'",
                "'%05f' % (1e308 * 10)", "'%5F|' % (1e308 * 10)", "'%+f' % -0.0", "'%010.2e' % 12345.678", "'%#.0f' % 3", "'%g %G' % (1e20, 1e-9)",
                "'%#g' % 1.5", "'%.0f' % 2.5", "'%10.3s|' % 'abcdef'", "'%05s' % 'a'", "'%-5s|' % 'é'", "'%i %u' % (1, 2)", "'%+ d' % 3",
                "'%s' % undefinedname", "'%d' % undefinedname", "'%s%%' % 1", "'%d' % none", "'%e' % 0", "'%s'|format(1)",
                "'%(a)s'|format(a=1)", "'%s'|format", "'%(a)s %s'|format(1, a=2)", "5|format"],
    "text formats": ["'{}'.format(1)", "'{} {}'.format(1)", "'{1} {0}'.format('a', 'b')", "'{} {0}'.format(1)", "'{0} {}'.format(1, 2)",
                     "'{a} {}'.format(1, a=2)", "'{!r} {0!s}'.format('é')", "'{!r} {!s} {!a}'.format('é', 'é', 'é')", "'{{}}'.format()",
                     "'{'.format()", "'}'.format()", "'{a}'.format_map({'a': 'é'})", "'{a!r}'.format_map({'a': 'x'})",
                     "'{}'.format_map({'a': 1})", "'{0}'.format_map({'0': 1})", "'{b}'.format_map({'a': 1})", "'x'.format_map({})",
                     "'{a}'.format_map(a=1)", "'{a}'.format_map()", "'{a}'.format_map([1])", "'{}'.format(none)", "'{}'.format(undefinedname)"],
    "methods": ["'a_1'.isidentifier()", "'1a'.isidentifier()", "''.isidentifier()", "'é日'.isidentifier()", "'a-b'.isidentifier()",
                "'a·'.isidentifier()", "'if'.isidentifier()", "dict.fromkeys(['a', 'b'], 1)", "dict.fromkeys('ab')", "{}.fromkeys([1, 1.0], 'x')",
                "{'a': 1}.fromkeys(('x',))", "dict.fromkeys([[1]])", "dict.fromkeys(5)", "dict.fromkeys()", "dict.copy"],
    "cases": ["'ᾳ'.upper()", "'ᾳ'|upper", "'ῼΐև'|upper", "'ᾼ'.capitalize()", "'ᾳ'.title()", "'ᾼ'.lower()", "'ßa ﬃx ŉ'.title()",
              "'ßa ﬃx ŉ'|title", "'ßa'|capitalize", "'ﬗᾳ'.swapcase()", "'ᾊᾚ'.swapcase()", "'İΑΣ'.lower()", "'ΑΣ’ ΑΣ․Α Σ ªΣ'.lower()",
              "'ΣΑΣ' is upper", "'ⅷⓐʰ' is lower", "'ⅷ'.islower()", "'🅰'.isupper()", "'ʰ'.istitle()"],
    "digits": [f"'{text}'.{method}()" for text in "٣ ³ ③ 一 三百 ½ Ⅷ ፩ a٣ 𝟙 ² 零 ⓪".split()
               for method in ("isdecimal", "isdigit", "isnumeric", "isalnum", "isalpha")],
}

SAFE = ["'<b>'|safe", "' <%s> '|safe", "'a<b c'|e", "''|safe"]
PLAIN = ["'<i>'", "'&'", "none", "5"]
KEPT = ["upper", "lower", "capitalize", "trim", "title", "center(9)", "string", "first", "last", "reverse", "replace('<', '&')", "join('<')",
        "list", "indent", "indent('<', true, true)", "truncate(3)", "truncate(3, true, '<', 0)", "truncate(4, false, '<', 0)", "e",
        "forceescape", "safe", "trim('<')", "default('x')", "tojson", "wordcount", "int", "format('<')", "length"]
KEEPING_METHODS = ["upper()", "lower()", "title()", "capitalize()", "swapcase()", "strip()", "lstrip('<')", "rstrip()", "center(9)",
                   "ljust(9, '.')", "rjust(9, '<')", "zfill(9)", "expandtabs()", "replace('b', '<')", "replace('b', '<'|safe)", "split('b')",
                   "rsplit()", "splitlines()", "partition('b')", "rpartition('z')", "join(['<', 1, '<'|safe])", "removeprefix('<')",
                   "removesuffix('>')", "format('<')", "find('b')", "count('<')", "isalpha()", "startswith('<')", "encode"]
CASES["safe text"] = [
    *(f"({text})|{name}" for text in SAFE for name in KEPT if text != "''|safe" or not name.startswith(("first", "last"))),
    *(f"({text}).{name}" for text in SAFE for name in KEEPING_METHODS if name != "encode"),
    *(f"({left}) {sign} {right}" for left in SAFE for sign in ("+", "~", "*", "%", "==", "in") for right in (*PLAIN, "('<'|safe)", "2")),
    *(f"{left} {sign} ({right})" for left in PLAIN for sign in ("+", "~", "*", "%", "==", "in") for right in SAFE),
    "('%s'|safe) % '<'", "('%s %s'|safe) % ('<', '<'|safe)", "('%r %a'|safe) % ('<é', '<é')", "('%(a)s'|safe) % {'a': '<'}", "('%d'|safe) % '12'",
    "('%d'|safe) % 'x'", "('%d'|safe) % ' 1_2 '", "('%x'|safe) % 255", "('%x'|safe) % '5'", "('%f'|safe) % '1.5'", "('%5.1f'|safe) % 2", "('%c'|safe) % 'x'",
    "('%*d'|safe) % (4, 5)", "('%8s|'|safe) % '<'", "('%.2s'|safe) % '<'", "('%s'|safe) % ['<']", "('x'|safe) % ['<']", "('x'|safe) % 5",
    "('%s'|safe)|format('<')", "('%(a)s'|safe)|format(a='<')", "'%s'|format('<'|safe)", "('{} {a}'|safe).format('<', a='<'|safe)",
    "('{!s} {!r}'|safe).format('<'|safe, '<')", "('{a}'|safe).format_map({'a': '<'})", "'{}'.format('<'|safe)", "'-'.join(['<'|safe])",
    "'<\\n>\\n'|indent('&'|safe)", "'<\\n>\\n'|indent('&'|safe, true)", "'<\\n>\\n'|indent('&'|safe, true, true)", "'<\\n>'|indent('&'|safe, false, true)",
    "'<a b>'|truncate(3, true, '<'|safe, 0)", "('<'|safe)[0]", "('<a'|safe)[:1]", "('<a'|safe)[::-1]", "('<'|safe)|list|first is escaped",
    "['<'|safe]|sum(start='')", "['<'|safe, 'a']|sort", "{'<'|safe: 1}['<']", "('<'|safe).upper() is escaped", "(('<'|safe)|upper) ~ '<' is escaped",
    "('<%s>'|safe) % '<b>'", "('<'|safe) + '<'", "('<'|safe)|upper|e", "('&'|e)|trim|e",
]
# Values are shown in a list, so that the mark of safe text is seen.
SHOWN = {topic: [f"{{{{ [{expression}] }}}}" for expression in expressions] for topic, expressions in CASES.items()}

FLAGS = ["", "#", "0", "-", " ", "+", "#0", "-0", "+ ", "0+", "#-0"]
VALUES = ["0", "-1", "7", "255", "-4096", "3.75", "-0.0", "1e22", "1e-7", "true", "'a'", "'é'", "none", "'<'|safe", "'12'"]


def random_formats(seed, count):
    """Templates of one random conversion each, some of safe text."""
    chooser = random.Random(seed)
    for _ in range(count):
        width = chooser.choice(["", "", "1", "6", "12"])
        precision = chooser.choice(["", "", ".", ".0", ".3", ".8"])
        conversion = "%" + chooser.choice(FLAGS) + width + precision + chooser.choice("srdiuoxXeEfFgGac")
        safe = chooser.choice(["", "", "|safe"])
        yield f"{{{{ [('<{conversion}>'{safe}) % ({chooser.choice(VALUES)})] }}}}"


METHODS = {
    "isalpha": str.isalpha, "isalnum": str.isalnum, "isdecimal": str.isdecimal, "isdigit": str.isdigit, "isnumeric": str.isnumeric,
    "isupper": str.isupper, "islower": str.islower, "istitle": str.istitle, "isspace": str.isspace, "isprintable": str.isprintable,
    "isidentifier": str.isidentifier,
}
CHANGES = {"upper": str.upper, "lower": str.lower, "title": str.title, "capitalize": str.capitalize, "swapcase": str.swapcase}


def assigned():
    """Without surrogates and private ones."""
    return [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]


def character_cases():
    """(template, variables, text that Python makes): every character with every method."""
    template = "{% for c in s %}" + "".join(f"{{{{ c.{name}()|int }}}}" for name in METHODS) + "{{ ('a' ~ c).isidentifier()|int }}"
    template += "".join(f"{{{{ c.{name}() }}}}|" for name in CHANGES) + "{{ ('A' ~ c ~ 'Σ').lower() }}{{ (' ' ~ c ~ 'Σ').lower() }}"
    template += "{% if c.isdecimal() %}{{ c|int }}{% endif %},{% endfor %}"
    characters = assigned()
    for begin in range(0, len(characters), 2048):
        part = characters[begin:begin + 2048]
        text = "".join(
            "".join(str(int(method(c))) for method in METHODS.values()) + str(int(("a" + c).isidentifier()))
            + "".join(change(c) + "|" for change in CHANGES.values()) + f"A{c}Σ".lower() + f" {c}Σ".lower()
            + (str(int(c)) if c.isdecimal() else "") + "," for c in part)
        yield template, {"s": "".join(part)}, text
