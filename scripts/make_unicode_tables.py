"""Writes src/tokenizer/tokenizer_unicode.c, all Unicode data of the tokenizer, or compares it with the tokenizers library.
usage: make_unicode_tables.py UCD            -> src/tokenizer/tokenizer_unicode.c
       make_unicode_tables.py UCD --check    -> counts of code points that the installed tokenizers and tiktoken read otherwise
UCD/<version> holds the package unicodedata2 of that version: pip install --no-deps --target UCD/16.0.0 unicodedata2==16.0.0
(16.0.0: general categories; 17.0.0: Digits; 18.0.0: normal form C).  Perl tells which code points Unicode 9.0 had."""
import json
import os
import subprocess
import sys

CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co Cn".split()
PATTERNS, DIGITS, NEWEST, OLD = "16.0.0", "17.0.0", "18.0.0", "9.0"
OUT = "src/tokenizer/tokenizer_unicode.c"
# Script Han, as Scripts.txt of PATTERNS has it; --check compares it with both libraries.
HAN = """2E80-2E99 2E9B-2EF3 2F00-2FD5 3005 3007 3021-3029 3038-303B 3400-4DBF 4E00-9FFF F900-FA6D FA70-FAD9 16FE2-16FE3 16FF0-16FF1
20000-2A6DF 2A700-2B739 2B740-2B81D 2B820-2CEA1 2CEB0-2EBE0 2EBF0-2EE5D 2F800-2FA1D 30000-3134A 31350-323AF"""
ALL = range(0x110000)
SCALARS = [c for c in ALL if not 0xD800 <= c < 0xE000]

DUMP = """
import json, unicodedata2 as u
points = [chr(c) for c in range(0x110000)]
json.dump({"version": u.unidata_version, "category": [u.category(c) for c in points],
           "class": {ord(c): u.combining(c) for c in points if u.combining(c)},
           "parts": {ord(c): [int(x, 16) for x in u.decomposition(c).split()]
                     for c in points if u.decomposition(c) and "<" not in u.decomposition(c)}}, sys.stdout)
"""


def unicode_data(ucd, version):
    """What the package of one version knows of every code point."""
    environment = dict(os.environ, PYTHONPATH=os.path.join(ucd, version))
    data = json.loads(subprocess.check_output([sys.executable, "-c", "import sys" + DUMP], env=environment))
    if data["version"] != version:
        sys.exit(f"make_unicode_tables.py: {ucd}/{version} holds Unicode {data['version']}")
    return data


def known_to(version):
    """The code points that are assigned in an old version, by their age."""
    program = 'no warnings; for (0..0x10ffff) { print "$_\\n" if chr($_) =~ /\\p{Present_In: ' + version + '}/ }'
    return set(map(int, subprocess.check_output(["perl", "-e", program]).split()))


def ranges(points):
    """[first, last] of each run of a set."""
    out = []
    for c in sorted(points):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def han():
    return [[int(part[0], 16), int(part[-1], 16)] for part in (word.split("-") for word in HAN.split())]


def category_runs(category):
    runs = []
    for c in ALL:
        if not runs or runs[-1][1] != category[c]:
            runs.append((c, category[c]))
    return runs


def numeric_beside_patterns(ucd, category):
    """Code points that Digits takes and category N of the patterns' version lacks."""
    newer = unicode_data(ucd, DIGITS)["category"]
    numeric = {c for c in ALL if newer[c][0] == "N"}
    lost = [c for c in ALL if category[c][0] == "N" and c not in numeric]
    if lost:
        sys.exit(f"make_unicode_tables.py: {len(lost)} code points are numeric in {PATTERNS} alone")
    return ranges(c for c in numeric if category[c][0] != "N")


def younger_in_normal_forms(ucd):
    """Code points younger than the library's normalizer that have a combining class, are composed, or part of a composition."""
    newest, old = unicode_data(ucd, NEWEST), known_to(OLD)
    taking = {int(c) for c in newest["class"]} | {int(c) for c in newest["parts"]}
    taking |= {part for parts in newest["parts"].values() for part in parts}
    return ranges(taking - old)


def rows(items):
    out, line = [], "   "
    for item in items:
        if len(line) + len(item) > 130:
            out.append(line)
            line = "   "
        line += f" {item},"
    return "\n".join(out + [line])


def write(ucd):
    category = unicode_data(ucd, PATTERNS)["category"]
    runs = [f"0x{c << 5 | CATEGORIES.index(name):x}" for c, name in category_runs(category)]
    pairs = [f"{{0x{a:x}, 0x{b:x}}}" for a, b in numeric_beside_patterns(ucd, category)]
    marks = [f"{{0x{a:x}, 0x{b:x}}}" for a, b in younger_in_normal_forms(ucd)]
    scripts = [f"{{0x{a:x}, 0x{b:x}}}" for a, b in han()]
    text = f"""/* tokenizer_unicode.c - all Unicode data of the tokenizer: scripts/make_unicode_tables.py writes it.
 *
 * The versions are those of the tokenizers library (0.22 and 0.23 agree), each part of which has its own: patterns {PATTERNS},
 * Digits {DIGITS}, its normalizer {OLD}.  tiktoken 0.14 has {PATTERNS}, too. */
#include "tokenizer/tokenizer_internal.h"

const char exf_unicode_version[] = "{PATTERNS}";

/* {len(runs)} runs of equal general category, first << 5 | index in exf_unicode_category. */
const uint32_t exf_unicode_run[] = {{
{rows(runs)}
}};
const size_t exf_unicode_runs = sizeof exf_unicode_run / sizeof *exf_unicode_run;

/* Script Han. */
const int32_t exf_unicode_han[][2] = {{
{rows(scripts)}
}};
const size_t exf_unicode_han_ranges = sizeof exf_unicode_han / sizeof *exf_unicode_han;

/* What Digits takes beside category N of {PATTERNS}. */
const int32_t exf_unicode_younger_digit[][2] = {{
{rows(pairs)}
}};
const size_t exf_unicode_younger_digits = sizeof exf_unicode_younger_digit / sizeof *exf_unicode_younger_digit;

/* Characters younger than {OLD} that have a combining class, are composed or part of a composition (as of {NEWEST}).  Models
 * were trained on what the library's normalizer makes; to it these are unassigned and take part in nothing. */
const int32_t exf_unicode_younger_mark[][2] = {{
{rows(marks)}
}};
const size_t exf_unicode_younger_marks = sizeof exf_unicode_younger_mark / sizeof *exf_unicode_younger_mark;
"""
    with open(OUT, "w", encoding="ascii") as file:
        file.write(text)
    print(f"{OUT}: {len(runs)} runs, {len(pairs)} ranges of digits, {len(marks)} ranges of marks")


def check(ucd):
    import tiktoken
    from tokenizers import Regex, __version__, pre_tokenizers
    category = unicode_data(ucd, PATTERNS)["category"]
    newer = unicode_data(ucd, DIGITS)["category"]
    text, apart, total = "".join(map(chr, SCALARS)), "a".join(map(chr, SCALARS)), 0

    def matched(pattern):
        split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
        return {ord(c) for piece, _ in split.pre_tokenize_str(text) for c in piece}

    def matched_by_tiktoken(pattern):
        ranks = {bytes([i]): i for i in range(256)}
        t = tiktoken.Encoding("bytes", pat_str=f"(?:{pattern})+", mergeable_ranks=ranks, special_tokens={})
        return set(map(ord, bytes(t.encode_ordinary(text)).decode()))

    expected = {name: {c for c in SCALARS if category[c] == name} for name in CATEGORIES if name != "Cs"}
    expected |= {group: {c for c in SCALARS if category[c][0] == group} for group in "LMNPSZC"}
    expected["Han"] = {c for a, b in han() for c in range(a, b + 1)}
    expected = {f"\\p{{{name}}}": points for name, points in expected.items()}
    expected["\\d"] = expected["\\p{Nd}"]
    expected["\\s"] = expected["\\p{Z}"] | {9, 10, 11, 12, 13, 0x85}
    found = {name: matched(name) for name in expected}
    for name in list(expected):
        expected[f"tiktoken {name}"], found[f"tiktoken {name}"] = expected[name], matched_by_tiktoken(name)
    expected["Digits"] = {c for c in SCALARS if newer[c][0] == "N"}
    pieces = pre_tokenizers.Digits(individual_digits=True).pre_tokenize_str("a" + apart + "a")
    found["Digits"] = {ord(piece) for piece, _ in pieces if len(piece) == 1 and piece != "a"}
    for name in expected:
        differing = expected[name] ^ found[name]
        total += len(differing)
        print(f"{name}: {len(found[name])} code points, {len(differing)} differ")
    print(f"tokenizers {__version__}, tiktoken {tiktoken.__version__}: {total} differences")
    return 1 if total else 0


if len(sys.argv) not in (2, 3) or sys.argv[2:] not in ([], ["--check"]):
    sys.exit(__doc__)
sys.exit(check(sys.argv[1]) if len(sys.argv) == 3 else write(sys.argv[1]))
