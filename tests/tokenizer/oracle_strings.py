# SPDX-License-Identifier: Apache-2.0
"""Seeded strings that a tokenizer must not get wrong, as bytes (not always valid UTF-8)."""
import random

SENTENCES = """
The quick brown fox doesn't jump; it'll crawl, they've said: I'd rather WE'RE done, shan't I'M.
C'est l'été à Besançon, où l'œuvre coûtait 1 234,56 € — déjà vu !
Größenwahnsinnige Straßenbahnführer fährt über Öl; Fußgänger weiß Bescheid.
El niño pingüino comió ñoquis en España. ¿Qué? ¡Órale!
Съешь же ещё этих мягких французских булок, да выпей чаю. Ёлка в 1986-м.
Ξεσκεπάζω την ψυχοφθόρα βδελυγμία· τὸ ἐλάχιστον ᾳ ᾼ Σίσυφος ΣΑΣ.
ראש הממשלה נפגש עם שָׁלוֹם בעיר ירושלים.
اللغة العربية جميلة جدًّا، والأرقام ١٢٣٤٥٦٧٨٩٠ هنا. سلام‌علیکم
हिन्दी में लिखा हुआ एक वाक्य, क्षत्रिय १२३४५ ज़िन्दगी।
বাংলা ভাষায় একটি বাক্য ১২৩।  தமிழ் மொழி அழகானது. తెలుగు వాక్యం. ಕನ್ನಡ ಮಲയാളം
ภาษาไทยไม่มีการเว้นวรรคระหว่างคำ ๑๒๓๔ กำลังดี
ລາວ ພາສາ မြန်မာဘာသာ ၁၂၃ ភាសាខ្មែរ ១២៣ བོད་སྐད། ༡༢༣ አማርኛ ፩፪፫
日本語の文章です。カタカナ、ひらがな、漢字が混ざっています。ー〜「引用」ﾊﾝｶｸ ㍿ ㋿
中文句子没有空格，数字一二三，還有繁體字。𠮷野家 𰻞𰻞面 〇
한국어 문장은 띄어쓰기가 있습니다. 각 가 힣 ㄱㄴㄷ
Tiếng Việt có nhiều dấu: ế ề ể ễ ệ, và Đặng. Türkçe: İstanbul ışık I İ ı i̇.
Հայերեն լեզու և ևս. ქართული ენა ᲥᲐᲠᲗᲣᲚᲘ. Монгол ᠮᠣᠩᠭᠣᠯ᠎ᠠ ᠁ Ꮳꮃꭹ
""".strip().split("\n")
CODE = [
    "def f(x: int) -> str:\n    return f\"{x:>10}\"  # comment\n\n\nclass A(B):\n\tpass\n",
    "for (int i = 0; i < 10; ++i) {\n  std::cout << a[i] << '\\n';\n}\r\n",
    "SELECT * FROM t WHERE a>=1 AND b<>'x''y' -- z\n",
    "<div class=\"a-b_c\">&nbsp;&#39;</div>\n\n<!-- -->",
    "{\"key\": [1, 2.5e-10, null, true], \"ключ\": \"\\u00e9\"}",
    "https://example.org/a/b?c=d&e=%20f#g user@example.com /usr/lib64/x86_64/ C:\\Temp\\new",
    "x=y+z*2**3//4%5^6|7&8~9!=0; a->b::c<T>(); $HOME `cmd` @decorator #!/bin/sh ... --flag=1",
    "\\begin{equation} \\frac{1}{2}\\,\\alpha_{i}^{2} \\end{equation}\n",
]
EMOJI = ["😀", "👨‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪🇯🇵", "❤️", "1️⃣", "☺", "🫠", "🧑‍🚀", "🪿", "㊗️", "™", "©"]
MARKS = "\u0300\u0301\u0308\u0323\u0327\u030a\u0345\u05b0\u064b\u093c\u0e38\u3099\u20dd\u20e3\u1ab0\ufe0f\U0001e08f\U0001e4ec\U0001d165"
SPACES = " \t\n\r\v\f\x1c\x1f\x85\u00a0\u1680\u180e\u2000\u2003\u200a\u200b\u200c\u200d\u2028\u2029\u202f\u205f\u2060\u3000\ufeff"
CONTRACTIONS = "'s 'S 't 'T 're 'RE 'rE 've 'VE 'm 'M 'll 'LL 'lL 'd 'D '\u017f '\u212a ’s 'ss 'st 'sT".split()
DIGITS = ["0", "7", "42", "123", "1234", "3.14159", "1,000,000", "0x1F", "1e-9", "２０２４", "٣٤", "४५", "²³¹", "½¼", "Ⅷⅷ", "①②", "𝟘𝟙", "𑱐", "〇", "\U00011de5", "\U00016ff4", "\U0001ccf3"]
NOT_CHARACTERS = [0xFFFE, 0xFFFF, 0xFDD0, 0x1FFFE, 0x10FFFF, 0xFFFD, 0x0, 0x7F, 0xAD]
BAD_BYTES = [
    b"\x80", b"\xff", b"\xc0\xaf", b"\xe2\x82", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xf4\x90\x80\x80",
    b"\xe0\x80\x80", b"\xf8\x88\x80\x80\x80", b"\xc3", b"\xe2\x28\xa1", b"\xf0\x28\x8c\xbc", b"\xc3\x28",
    b"\xf0\x90\x28\xbc", b"\xfe", b"\xe1\x80", b"\xf1\x80\x80", b"\xef\xbf", b"\xf0\x8f\xbf\xbf",
]


def random_code_point(rng):
    kind = rng.random()
    if kind < 0.3:
        c = rng.randrange(0x20, 0x3000)
    elif kind < 0.6:
        c = rng.randrange(0x3000, 0x20000)
    elif kind < 0.8:
        c = rng.randrange(0x10000, 0x1FC00)
    elif kind < 0.85:
        c = rng.choice(NOT_CHARACTERS)
    else:
        c = rng.randrange(0x110000)
    return 0xFFFD if 0xD800 <= c <= 0xDFFF else c


def piece(rng, special_tokens):
    kind = rng.randrange(15)
    if kind <= 2:
        words = rng.choice(SENTENCES).split(" ")
        start = rng.randrange(len(words))
        return " ".join(words[start : start + rng.randint(1, 8)])
    if kind == 3:
        code = rng.choice(CODE)
        start = rng.randrange(len(code))
        return code[start : start + rng.randint(1, 60)]
    if kind == 4:
        return rng.choice(DIGITS) * rng.randint(1, 3)
    if kind == 5:
        return "".join(rng.choice(SPACES[: rng.choice([1, 4, 6, len(SPACES)])]) for _ in range(rng.randint(1, 9)))
    if kind == 6:
        return rng.choice(EMOJI) * rng.randint(1, 2)
    if kind == 7:
        base = rng.choice("aeiouAEÅşがカ각한यलا\u0344\u1100\u1161")
        return base + "".join(rng.choice(MARKS) for _ in range(rng.randint(1, 4)))
    if kind == 8:
        return rng.choice(["it", "WE", "é", "", "1", "don", "\u1ea0"]) + rng.choice(CONTRACTIONS)
    if kind == 9 and special_tokens:
        token = rng.choice(special_tokens)
        cut = rng.random()
        if cut < 0.15:
            token = token[: rng.randint(1, len(token))]
        elif cut < 0.25:
            token = token.upper()
        return rng.choice(["", " ", "\n ", "a", "_", "\u3000"]) + token + rng.choice(["", " ", "\t\n", "b", "-"])
    if kind == 10:
        return "".join(chr(random_code_point(rng)) for _ in range(rng.randint(1, 6)))
    if kind == 11:
        return rng.choice(BAD_BYTES) * rng.randint(1, 2)
    if kind == 12:
        return bytes(rng.randrange(256) for _ in range(rng.randint(1, 6)))
    if kind == 13:
        return rng.choice("-=*#_.!?(){}[]<>\"'`~|/\\^$€+&%@,;:«»…—·") * rng.choice([1, 2, 3, 17])
    return rng.choice("aAzZжß字") * rng.choice([1, 3, 40])


def strings(seed, count, special_tokens):
    """`count` byte strings; about one in six is not valid UTF-8."""
    rng = random.Random(seed)
    result = [b""]
    while len(result) < count:
        text = b""
        for _ in range(rng.choice([1, 1, 2, 3, 5, 8])):
            part = piece(rng, special_tokens)
            text += part if isinstance(part, bytes) else part.encode()
            if rng.random() < 0.5:
                text += b" "
        if rng.random() < 0.03 and len(text) > 1:
            text = text[: rng.randrange(1, len(text))]
        result.append(text)
    return result
