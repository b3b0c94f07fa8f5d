"""Writes tests/golden/tokenizers/released: a small tokenizer in the shape of some releases, texts, and the ids that the tokenizers
library, for Kimi-K2 tiktoken, makes of them.
usage: make_release_tokenizers.py              (tokenizers 0.23, tiktoken 0.14)
       make_release_tokenizers.py N SHAPE IDS  -> N other texts, a JSON string a line, and to the file IDS what the library makes of
                                                  these with the tokenizer that is there"""
import base64
import json
import os
import random
import sys
from collections import Counter

import tiktoken
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

OUT = "tests/golden/tokenizers/released"
TEXTS, VOCABULARY, RESERVED = 260, 560, 256

ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
START, UPPER, LOWER = r"[^\r\n\p{L}\p{N}]?", r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
BLANKS = [r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"]
O200K = "|".join([f"{START}[{UPPER}]*[{LOWER}]+{ENDINGS}", f"{START}[{UPPER}]+[{LOWER}]*{ENDINGS}", r"\p{N}{1,3}",
                  r" ?[^\s\p{L}\p{N}]+[\r\n/]*"] + BLANKS)
NO_HAN = r"&&[^\p{Han}]"
KIMI = [r"[\p{Han}]+", f"{START}[{UPPER}{NO_HAN}]*[{LOWER}{NO_HAN}]+{ENDINGS}",
        f"{START}[{UPPER}{NO_HAN}]+[{LOWER}{NO_HAN}]*{ENDINGS}", r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*"] + BLANKS

GPT_OSS = ["<|startoftext|>", "<|endoftext|>", "<|reserved_200000|>", "<|reserved_200001|>", "<|return|>", "<|constrain|>",
           "<|reserved_200004|>", "<|channel|>", "<|start|>", "<|end|>", "<|message|>", "<|call|>", "<|endofprompt|>"]
MINIMAX = ["]!p~[", "<fim_prefix>", "<reponame>", "]~!b[", "[e~[", "]~b]", "<think>", "</think>"]
KIMI_NAMES = {0: "[BOS]", 1: "[EOS]", 2: "<|im_end|>", 3: "<|im_user|>", 4: "<|im_assistant|>", 10: "<|im_middle|>",
              11: "<|tool_call_begin|>", 254: "[UNK]", 255: "[PAD]"}
SMOLLM2 = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>"]
OLMOE_BLANKS = [" " * n for n in range(12, 1, -1)]
SENTENCES = r"""The quick brown fox jumps over the lazy dog; it's 1234567 times that they'll say we've won, I'm sure.
Le cœur a ses raisons que la raison ne connaît point : œuvre, naïve, garçon, déjà vu, ça va.
Die Straße nach Köln führt über große Brücken; Übermut tut selten gut.
Быстрая коричневая лиса перепрыгивает через ленивую собаку, и всё это в 2024 году.
Η γρήγορη καφέ αλεπού πηδάει πάνω από το τεμπέλικο σκυλί.
敏捷的棕色狐狸跳过了懒狗，学习一门语言需要时间。中文English混合文本。
素早い茶色の狐がのろまな犬を飛び越える。カタカナとひらがな、漢字々〆〇。
빠른 갈색 여우가 게으른 개를 뛰어넘는다. 한국어 문장입니다.
الثعلب البني السريع يقفز فوق الكلب الكسول ١٢٣٤
השועל החום המהיר קופץ מעל הכלב העצלן
तेज़ भूरी लोमड़ी आलसी कुत्ते के ऊपर कूदती है १२३
สุนัขจิ้งจอกสีน้ำตาลกระโดดข้ามสุนัขขี้เกียจ
def main(argv):\n    for i in range(10):\n        print(f"{i:>8} {x[i]}")  # done\n    return 0\n
#include <stdio.h>\nint main(void) {\n\treturn !puts("Hello, World");\n}\n
x² + y² = r², √2 ≈ 1.41421356, α ≤ β, ∑ ∞ → ⇒; 3/4 ½ Ⅷ ①
HTTPServer XMLHttpRequest iPhone McDonald's O'NEILL'S camelCase snake_case CONSTANT_CASE
//example.org/a/b?c=d&e=%20#f//// user@example.org ../path/to/file.txt"""
SENTENCES = [line.replace("\\n", "\n").replace("\\t", "\t") for line in SENTENCES.split("\n")]
HARD = [
    "", " ", "  ", "   ", "\n", "\n\n \n", "\t", " \t \n x", "a", " a", "  a", "a ", "a  ", "▁", "▁▁", " ▁ ", "▁a ▁b", "a▁b",
    "a ▁ b", "<0x41>", "<unk>", "<s>", "<s>a", "a<s>b", "</s> a", "<s><s> a</s>", " <s> ", "<s",
    "don't DON'T it'S we'LL Iſ'm'ſ", "x" * 70, " " * 40 + "x", "a" + " " * 24 + "b", "\n" * 20, "\r\n\r\n\r",
    "0123456789" * 4, "1 22 333 4444 55555", "½ ² ٣٤ 一二三 Ⅷ", "e\u0301n\u0303 \u212b \u1100\u1161\u11a8", "😀😃 👩\u200d👩\u200d👧\u200d👦 🏳️\u200d🌈 🇩🇪 ☃",
    "\u200bzero\xa0nbsp\u2003em\u3000ideographic\u2028line\u2029\x85nel\x0bvt\x0cff", "\x00\x01\x7f\x1c\x1f", "\ufeffBOM �",
    "ǅ ǈ ŉ İ ı ẞ ﬁ ﬂ ＡＢＣ １２３", "漢字abc漢字", "々〇〡〻⺀⻳", "𠀀𪛟\U0002b739𫝀 𰀀 \U000323af", "ｶﾀｶﾅ ㄱㄴ", "一a二B三", "A一B", "word" * 30,
    "'" * 9, "é" * 30, "\U000e0001\U000e0041", "\U0010fffd\ue000", "ᲀ Ა Ჿ", "\u0378 \U00016100 \U0001cc00", "aÀbÉ" * 5,
    "mixedCASEWords ANDMore", "////\n//\r\n"]


def every_special():
    names = GPT_OSS + MINIMAX + list(KIMI_NAMES.values()) + ["<|reserved_token_700|>", "|||IP_ADDRESS|||", "<|padding|>"]
    return [f"{name}" for name in names] + [f"a {name} b{name}" for name in names] + ["  ".join(names)]


def random_text(rng):
    letters = [" "] * 12 + list("etaoinshr'.,\n\t1<▁") + [rng.choice(rng.choice(SENTENCES)) for _ in range(8)]
    for _ in range(rng.randrange(6)):
        c = rng.choice((0x100, 0x800, 0x3000, 0x10000, 0x33000, 0x110000))
        c = rng.randrange(c)
        letters.append(chr(c) if not 0xD800 <= c < 0xE000 else "é")
    words = [rng.choice(SENTENCES)[(a := rng.randrange(60)):a + rng.randrange(30)] for _ in range(3)]
    return "".join(rng.choice(letters + words) for _ in range(rng.randrange(1, 40)))


def texts(rng, n):
    out = HARD + SENTENCES + every_special()
    return out + [random_text(rng) for _ in range(n - len(out))]


def training(rng):
    with open("examples/demo-corpus.jsonl", encoding="utf-8") as file:
        corpus = [json.loads(line)["text"] for line in file]
    return corpus[:20] + [s for s in SENTENCES for _ in range(12)]


def raw(names, special=True):
    return [AddedToken(name, normalized=False, special=special) for name in names]


def byte_level(data, steps, splits, normalizer, ignore, names, blanks=(), alphabet=None):
    """alphabet: letters of bytes that the vocabulary has whatever the data; None: all."""
    t = Tokenizer(models.BPE(ignore_merges=ignore))
    if normalizer:
        t.normalizer = normalizer
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=splits)
    t.pre_tokenizer = pre_tokenizers.Sequence(steps + [last]) if steps else last
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(data, trainers.BpeTrainer(vocab_size=VOCABULARY, show_progress=False,
                                                    initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if alphabet is None else alphabet))
    t.add_special_tokens(raw(names))
    t.add_tokens([AddedToken(blank, normalized=True) for blank in blanks])
    return t


def removed(pattern):
    return [pre_tokenizers.Split(Regex(pattern), "removed", invert=True)]


def words(data):
    """A vocabulary of words that begin with "▁", and merges, from which characters of few texts are missing."""
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Metaspace(split=True)
    counts = Counter("".join(data))
    known = set(sorted(counts, key=lambda c: (-counts[c], c))[:110])
    data = ["".join(c if c in known else " " for c in text) for text in data]
    t.train_from_iterator(data, trainers.BpeTrainer(vocab_size=VOCABULARY - 256, show_progress=False))
    model = json.loads(t.to_str())["model"]
    return model["vocab"], [tuple(m) if not isinstance(m, str) else tuple(m.split(" ")) for m in model["merges"]]


def mixtral(data, normalizer, pre, lacks=(), fuse=True, crossing=False):
    letters, merges = words(data)
    pairs = [("▁", "▁"), ("▁▁", "▁▁"), ("▁▁▁▁", "▁▁▁▁")] + ([(",", "▁"), ("s", "▁a")] if crossing else [])
    merges = merges + [p for p in pairs if p not in merges and (p[1] in letters or p[1].strip("▁") == "")]
    names = ["<unk>", "<s>", "</s>"] + [f"<0x{c:02X}>" for c in range(256) if c not in lacks]
    tokens = dict.fromkeys(names + [a + b for a, b in merges] + sorted(k for k in letters if len(k) == 1))
    vocabulary = {token: i for i, token in enumerate(tokens)}
    t = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=fuse, byte_fallback=True))
    if normalizer:
        t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    if pre:
        t.pre_tokenizer = pre
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    t.add_special_tokens(raw(["<unk>", "<s>", "</s>"]))
    t.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    return t


def gemma(data):
    """Blanks become "▁" before they could be split at; no word has one in front."""
    t = mixtral(data, False, None, crossing=True)
    names = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    model = json.loads(t.to_str())["model"]
    tokens = [token for token in model["vocab"] if token not in ("<unk>", "<s>", "</s>")]
    merges = [tuple(m) if not isinstance(m, str) else tuple(m.split(" ")) for m in model["merges"]]
    vocabulary = {token: i for i, token in enumerate(names + tokens)}
    t = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Replace(" ", "▁")
    t.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    t.add_special_tokens(raw(names + ["<|turn>", "<turn|>"]))
    t.add_tokens([AddedToken(text, normalized=False) for text in ("\n\n", "▁▁▁", "<table>")])
    t.post_processor = processors.TemplateProcessing(single="<bos> $A", pair="<bos> $A <bos> $B", special_tokens=[("<bos>", 2)])
    return t


def metaspace(scheme, split):
    return pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=split)


SHAPES = {
    "mixtral": lambda d: mixtral(d, True, None),
    "mixtral_metaspace": lambda d: mixtral(d, False, metaspace("first", False)),
    "mixtral_old_metaspace": lambda d: mixtral(d, False, metaspace("always", True), crossing=True),
    "mixtral_unknown": lambda d: mixtral(d, True, None, lacks=[0x80, 0xE4, 0xF0], crossing=True),
    "mixtral_unfused": lambda d: mixtral(d, False, metaspace("never", False), lacks=[0x80, 0xE4, 0xF0], fuse=False),
    "gemma": gemma,
    "gpt_oss": lambda d: byte_level(d, removed(O200K), False, None, True, GPT_OSS),
    "minimax_m2": lambda d: byte_level(d, removed(O200K), False, None, False, MINIMAX),
    "smollm2": lambda d: byte_level(d, [pre_tokenizers.Digits(individual_digits=True)], True, None, False, SMOLLM2, alphabet=[]),
    "olmoe": lambda d: byte_level(d, [], True, normalizers.NFC(), False, ["<|padding|>", "|||IP_ADDRESS|||"], OLMOE_BLANKS),
}


def compact(t, name):
    """The file as text; Metaspace of old files has another key in place of the newer ones."""
    content = json.loads(t.to_str())
    content["model"]["merges"] = [" ".join(m) if not isinstance(m, str) else m for m in content["model"]["merges"]]
    if name == "mixtral_old_metaspace":
        content["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True}
        assert Tokenizer.from_str(json.dumps(content)).encode("a b ").ids == t.encode("a b ").ids
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def kimi(data):
    """tiktoken's ranks in the order in which a byte-level tokenizer of the same pattern merges, after GPT-2's order of bytes."""
    t = byte_level(data, removed("|".join(KIMI)), False, None, False, [])
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    order = printable + [c for c in range(256) if c not in printable]
    letters = {chr(c) if c in printable else chr(0x100 + order.index(c) - len(printable)): c for c in order}
    ranks = {bytes([c]): i for i, c in enumerate(order)}
    for a, b in json.loads(t.to_str())["model"]["merges"]:
        ranks.setdefault(bytes(letters[c] for c in a + b), len(ranks))
    return ranks


def kimi_specials(ranks):
    return {KIMI_NAMES.get(i, f"<|reserved_token_{len(ranks) + i}|>"): len(ranks) + i for i in range(RESERVED)}


def kimi_encoding(ranks):
    return tiktoken.Encoding("kimi_k2", pat_str="|".join(KIMI), mergeable_ranks=ranks, special_tokens=kimi_specials(ranks))


def write_kimi(ranks):
    os.makedirs(f"{OUT}/kimi_k2", exist_ok=True)
    with open(f"{OUT}/kimi_k2/tiktoken.model", "w", encoding="ascii") as file:
        file.writelines(f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items())
    off = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    decoder = {str(i): {"content": name} | off for name, i in kimi_specials(ranks).items() if name in KIMI_NAMES.values()}
    config = {"added_tokens_decoder": decoder, "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
              "bos_token": "[BOS]", "clean_up_tokenization_spaces": False, "eos_token": "[EOS]", "model_max_length": 1048576,
              "pad_token": "[PAD]", "tokenizer_class": "TikTokenTokenizer", "unk_token": "[UNK]"}
    with open(f"{OUT}/kimi_k2/tokenizer_config.json", "w", encoding="ascii") as file:
        json.dump(config, file, indent=1)
    lines = "".join(f'            r"""{part}""",\n' for part in KIMI)
    with open(f"{OUT}/kimi_k2/tokenization_kimi.py", "w", encoding="ascii") as file:
        file.write('# The constants that stand in the Python file of the release, in their place and form.\n\n\n'
                   'class TikTokenTokenizer:\n'
                   f'    num_reserved_special_tokens = {RESERVED}\n\n    pat_str = "|".join(\n        [\n{lines}        ]\n    )\n')


def ids_of(t, text):
    """The ids; None where the vocabulary lacks a byte of the text, which the library drops without a word."""
    ids = t.encode(text).ids
    if not isinstance(t.decoder, decoders.ByteLevel) or t.normalizer:
        return ids
    return ids if t.decode(ids, skip_special_tokens=False) == text else None


def encode(t, some):
    if isinstance(t, tiktoken.Encoding):
        return [t.encode(text, allowed_special="all") for text in some]
    return [ids_of(t, text) for text in some]


def main():
    rng = random.Random(28)
    some, data = texts(rng, TEXTS), training(rng)
    os.makedirs(OUT, exist_ok=True)
    with open(f"{OUT}/texts.json", "w", encoding="utf-8") as file:
        json.dump(some, file, ensure_ascii=False, indent=0)
    for name in list(SHAPES) + ["kimi_k2"]:
        if name == "kimi_k2":
            ranks = kimi(data)
            write_kimi(ranks)
            t = kimi_encoding(ranks)
        else:
            t = SHAPES[name](data)
            os.makedirs(f"{OUT}/{name}", exist_ok=True)
            with open(f"{OUT}/{name}/tokenizer.json", "w", encoding="utf-8") as file:
                file.write(compact(t, name))
        ids = encode(t, some)
        with open(f"{OUT}/{name}/ids.json", "w", encoding="utf-8") as file:
            file.write("[\n" + ",\n".join(json.dumps(i, separators=(",", ":")) for i in ids) + "\n]\n")
        print(f"{name}: {sum(len(i) for i in ids if i is not None)} ids of {sum(i is not None for i in ids)} texts")


def written(name):
    """The tokenizer as its files have it."""
    if name != "kimi_k2":
        return Tokenizer.from_file(f"{OUT}/{name}/tokenizer.json")
    with open(f"{OUT}/{name}/tiktoken.model", encoding="ascii") as file:
        return kimi_encoding({base64.b64decode(token): int(rank) for token, rank in map(str.split, file)})


def write_more(n, name, path):
    rng = random.Random(n)
    some = [random_text(rng) for _ in range(n)]
    with open(path, "w", encoding="ascii") as file:
        file.writelines(json.dumps(ids) + "\n" for ids in encode(written(name), some))
    sys.stdout.writelines(json.dumps(text) + "\n" for text in some)


if len(sys.argv) == 1:
    main()
elif len(sys.argv) == 4:
    write_more(int(sys.argv[1]), sys.argv[2], sys.argv[3])
else:
    sys.exit(__doc__)
