"""Expressions whose meaning is Python's in detail, and what of characters Python's str knows."""

import unicodedata

CASES = {
    "cases": ["'ᾳ'.upper()", "'ᾳ'|upper", "'ῼΐև'|upper", "'ᾼ'.capitalize()", "'ᾳ'.title()", "'ᾼ'.lower()", "'ßa ﬃx ŉ'.title()",
              "'ßa ﬃx ŉ'|title", "'ßa'|capitalize", "'ﬗᾳ'.swapcase()", "'ᾊᾚ'.swapcase()", "'İΑΣ'.lower()", "'ΑΣ’ ΑΣ․Α Σ ªΣ'.lower()",
              "'ΣΑΣ' is upper", "'ⅷⓐʰ' is lower", "'ⅷ'.islower()", "'🅰'.isupper()", "'ʰ'.istitle()"],
    "digits": [f"'{text}'.{method}()" for text in "٣ ³ ③ 一 三百 ½ Ⅷ ፩ a٣ 𝟙 ² 零 ⓪".split()
               for method in ("isdecimal", "isdigit", "isnumeric", "isalnum", "isalpha")],
}

SHOWN = {topic: [f"{{{{ [{expression}] }}}}" for expression in expressions] for topic, expressions in CASES.items()}

METHODS = {
    "isalpha": str.isalpha, "isalnum": str.isalnum, "isdecimal": str.isdecimal, "isdigit": str.isdigit, "isnumeric": str.isnumeric,
    "isupper": str.isupper, "islower": str.islower, "istitle": str.istitle, "isspace": str.isspace, "isprintable": str.isprintable,
}
CHANGES = {"upper": str.upper, "lower": str.lower, "title": str.title, "capitalize": str.capitalize, "swapcase": str.swapcase}


def assigned():
    """Without surrogates and private ones."""
    return [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]


def character_cases():
    """(template, variables, text that Python makes): every character with every method."""
    template = "{% for c in s %}" + "".join(f"{{{{ c.{name}()|int }}}}" for name in METHODS)
    template += "".join(f"{{{{ c.{name}() }}}}|" for name in CHANGES) + "{{ ('A' ~ c ~ 'Σ').lower() }}{{ (' ' ~ c ~ 'Σ').lower() }}"
    template += ",{% endfor %}"
    characters = assigned()
    for begin in range(0, len(characters), 2048):
        part = characters[begin:begin + 2048]
        text = "".join(
            "".join(str(int(method(c))) for method in METHODS.values())
            + "".join(change(c) + "|" for change in CHANGES.values()) + f"A{c}Σ".lower() + f" {c}Σ".lower()
            + "," for c in part)
        yield template, {"s": "".join(part)}, text
