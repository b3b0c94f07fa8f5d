"""Writes tests/golden/tokenizers/unicode: a small tokenizer for each supported shape of pattern, trained on text whose code points
are of Unicode 15 and 16 too, 500 texts, the ids that the tokenizers library makes of them, and what it takes each category for.
usage: make_tokenizer_goldens.py UCD     (tokenizers 0.23; UCD as in make_unicode_tables.py: unicodedata2 16.0.0 and 17.0.0)"""
import hashlib
import json
import os
import random
import subprocess
import sys
import unicodedata

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

OUT = "tests/golden/tokenizers/unicode"
TEXTS, VOCABULARY = 500, 640

ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
QWEN = ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
MARKS = (ENDINGS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
TRIPLES = QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
V3 = [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
      r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"""
      r"\s*[\r\n]+|\s+(?!\S)|\s+"]
CODER = [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+"]
LLM = [r"[\r\n]", r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-Ֆ]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$",
       "[一-龥ࠀ-一가-퟿]+"]
CASED = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + ENDINGS + r"?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + ENDINGS + r"?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


DIGITS = pre_tokenizers.Digits(individual_digits=True)
# name: normalizer, steps before ByteLevel, whether ByteLevel splits itself, ignore_merges
SHAPES = {
    "qwen3": (normalizers.NFC(), [split(QWEN)], False, False),
    "qwen3_5": (normalizers.NFC(), [split(MARKS)], False, False),
    "glm4": (None, [split(TRIPLES)], False, False),
    "deepseek_v3_v4": (normalizers.Sequence([]), [split(p) for p in V3], False, False),
    "deepseek_v2": (normalizers.Sequence([]), [split(p) for p in LLM] + [DIGITS], False, False),
    "deepseek_coder": (normalizers.Sequence([]), [split(p) for p in CODER] + [DIGITS], False, False),
    "llama3": (None, [split(TRIPLES)], False, True),
    "o200k": (None, [split(CASED)], False, True),
    "gpt_neox": (normalizers.NFC(), [], True, False),
}


def categories(ucd, version):
    environment = dict(os.environ, PYTHONPATH=os.path.join(ucd, version))
    program = "import sys, unicodedata2 as u; sys.stdout.write(','.join(u.category(chr(c)) for c in range(0x110000)))"
    return subprocess.check_output([sys.executable, "-c", program], env=environment, text=True).split(",")


def newer_characters(ucd, rng):
    """Some characters of each category that Unicode 15, 16 or 17 gave it, and some that 14 had already."""
    if not unicodedata.unidata_version.startswith("14."):
        sys.exit("make_tokenizer_goldens.py: Python's own data must be of Unicode 14, as Python 3.11's")
    old = [unicodedata.category(chr(c)) for c in range(0x110000)]
    patterns, digits = categories(ucd, "16.0.0"), categories(ucd, "17.0.0")
    groups = {}
    for c in range(0x110000):
        if patterns[c] in ("Cs", "Co") or digits[c] == "Cn":
            continue
        age = "new" if patterns[c] != old[c] else "younger" if digits[c] != patterns[c] else "old"
        if age != "old" or c > 0xFF:
            groups.setdefault((age, patterns[c] if age != "younger" else digits[c]), []).append(chr(c))
    return {key: rng.sample(members, min(12, len(members))) for key, members in groups.items()}


def words(rng, groups):
    """A list of words: plain ones, and ones of or with newer characters, which come often enough to be merged."""
    out = ["".join(rng.choice("aeiou") + rng.choice("lnrst") for _ in range(rng.randrange(1, 4))) for _ in range(40)]
    for (age, _), members in sorted(groups.items()):
        for _ in range(2 if age == "old" else 5):
            out.append("".join(rng.choices(members[:4], k=rng.randrange(1, 4))))
            out.append(rng.choice("aet") + rng.choice(members[:3]))
            out.append(rng.choice(members[:3]) + rng.choice("ae1."))
    return out


def sentence(rng, vocabulary, n):
    joints = [" "] * 8 + ["", "\n", "  ", "'s ", ", ", "\t", " 7", "\u00a0"]
    return "".join(rng.choice(vocabulary) + rng.choice(joints) for _ in range(n))


def swept():
    """For each category, \\s, \\d and Digits: how many of all code points the library takes for it, and their SHA-256."""
    everything = "".join(chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000)
    names = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co Cn L M N P S Z C".split()
    out = {}
    for pattern in [f"\\p{{{name}}}" for name in names] + ["\\s", "\\d", "."]:
        pieces = pre_tokenizers.Split(Regex(pattern + "+"), "removed", invert=True).pre_tokenize_str(everything)
        out[pattern] = "".join(piece for piece, _ in pieces)
    pieces = DIGITS.pre_tokenize_str("".join("a" + c for c in everything))
    out["Digits"] = "".join(piece for piece, _ in pieces if piece[0] != "a")
    return {name: [len(text), hashlib.sha256(text.encode()).hexdigest()] for name, text in out.items()}


def main(ucd):
    rng = random.Random(16)
    groups = newer_characters(ucd, rng)
    vocabulary = words(rng, groups)
    training = [sentence(rng, vocabulary, 30) for _ in range(1500)]
    everything = [c for members in groups.values() for c in members]
    texts = ["".join(members) for members in groups.values()]
    texts += [" " + c + "a" + c + " " + c for key, members in groups.items() if key[0] != "old" for c in members[:3]]
    while len(texts) < TEXTS:
        mixed = vocabulary + everything if len(texts) % 2 else vocabulary
        texts.append(sentence(rng, mixed, rng.randrange(1, 8)))
    os.makedirs(OUT, exist_ok=True)
    with open(f"{OUT}/texts.json", "w", encoding="utf-8") as file:
        json.dump(texts, file, ensure_ascii=False, indent=0)
    with open(f"{OUT}/categories.json", "w", encoding="ascii") as file:
        file.write("{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in swept().items()) + "\n}\n")
    for name, (normalizer, steps, splits, ignore) in SHAPES.items():
        t = Tokenizer(models.BPE(ignore_merges=ignore))
        if normalizer:
            t.normalizer = normalizer
        last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=splits)
        t.pre_tokenizer = pre_tokenizers.Sequence(steps + [last]) if steps else last
        t.decoder = decoders.ByteLevel()
        t.train_from_iterator(training, trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=[], show_progress=False,
                                                            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
        content = json.loads(t.to_str())
        content["model"]["merges"] = [" ".join(m) if not isinstance(m, str) else m for m in content["model"]["merges"]]
        with open(f"{OUT}/{name}.json", "w", encoding="utf-8") as file:
            json.dump(content, file, ensure_ascii=False, separators=(",", ":"))
        ids = [encoding.ids for encoding in t.encode_batch(texts, add_special_tokens=False)]
        with open(f"{OUT}/{name}.ids.json", "w", encoding="utf-8") as file:
            file.write("[\n" + ",\n".join(json.dumps(i, separators=(",", ":")) for i in ids) + "\n]\n")
        print(f"{name}: {t.get_vocab_size()} tokens, {sum(map(len, ids))} ids of {len(texts)} texts")


if len(sys.argv) != 2:
    sys.exit(__doc__)
main(sys.argv[1])
