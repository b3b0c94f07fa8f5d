#!/usr/bin/env python3
"""make_bad_fixtures.py - makes the binary files under tests/bad, so that they can be audited.

usage: python3 scripts/make_bad_fixtures.py [--check]

Writes tests/bad/base/model (a tiny valid checkpoint: qwen3_moe, 2 layers, 4
experts, top-2, hidden 16, random BF16 weights, byte-level tokenizer), the token
ids beside it, and tests/bad/files: artifacts and shards of that checkpoint with
one fault each.  Deterministic: the same bytes on every machine and every Python
3.8 or later; only the standard library is used.
--check writes nothing and exits 1 if a committed file differs, or if tests/bad/files
holds another.

Tests do not run this script.  Faults that a line of shell makes (of texts, headers,
single bytes) are not here: the `setup` of their case in tests/bad/*.cases shows them.
"""
import glob
import json
import math
import os
import random
import struct
import sys
import zlib

HERE = os.path.dirname(os.path.abspath(__file__))
BAD = os.path.join(HERE, "..", "tests", "bad")
CLI = os.path.join(HERE, "..", "tests", "cli", "cases")
FILES = {}  # path -> bytes


def put(path, data, root=BAD):
    FILES[os.path.normpath(os.path.join(root, path))] = data


# ---- safetensors ------------------------------------------------------------

WIDTH = {"BF16": 2, "I8": 1, "I32": 4}


def safetensors(tensors):
    """tensors: list of (name, dtype, shape, bytes), laid out in this order."""
    header, data = {}, b""
    for name, dtype, shape, raw in tensors:
        assert len(raw) == WIDTH[dtype] * math.prod(shape), name
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def bf16(values):
    """Truncated, not rounded: the values are random anyway."""
    return b"".join(struct.pack("<f", v)[2:] for v in values)


# ---- the base model -----------------------------------------------------------

LAYERS, EXPERTS, TOP_K, HIDDEN, HEADS, KV_HEADS, HEAD, WIDE, VOCAB = 2, 4, 2, 16, 2, 1, 8, 8, 260

CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "head_dim": HEAD,
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": WIDE,
    "norm_topk_prob": True,
    "num_attention_heads": HEADS,
    "num_experts": EXPERTS,
    "num_experts_per_tok": TOP_K,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": KV_HEADS,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": VOCAB,
}


def base_tensors():
    rng = random.Random(20240229)

    def weight(*shape):
        # uniform with the variance of 1/fan_in: hidden states neither vanish nor explode
        scale = math.sqrt(12 / shape[-1])
        return list(shape), bf16((rng.random() - 0.5) * scale for _ in range(math.prod(shape)))

    def ones(n):
        return [n], bf16([1.0] * n)

    out = [("model.embed_tokens.weight",) + weight(VOCAB, HIDDEN), ("model.norm.weight",) + ones(HIDDEN)]
    for layer in range(LAYERS):
        p = f"model.layers.{layer}."
        out += [
            (p + "input_layernorm.weight",) + ones(HIDDEN),
            (p + "self_attn.q_proj.weight",) + weight(HEADS * HEAD, HIDDEN),
            (p + "self_attn.k_proj.weight",) + weight(KV_HEADS * HEAD, HIDDEN),
            (p + "self_attn.v_proj.weight",) + weight(KV_HEADS * HEAD, HIDDEN),
            (p + "self_attn.o_proj.weight",) + weight(HIDDEN, HEADS * HEAD),
            (p + "self_attn.q_norm.weight",) + ones(HEAD),
            (p + "self_attn.k_norm.weight",) + ones(HEAD),
            (p + "post_attention_layernorm.weight",) + ones(HIDDEN),
            (p + "mlp.gate.weight",) + weight(EXPERTS, HIDDEN),
        ]
        for expert in range(EXPERTS):
            q = f"{p}mlp.experts.{expert}."
            out += [
                (q + "gate_proj.weight",) + weight(WIDE, HIDDEN),
                (q + "up_proj.weight",) + weight(WIDE, HIDDEN),
                (q + "down_proj.weight",) + weight(HIDDEN, WIDE),
            ]
    return [(name, "BF16", shape, raw) for name, shape, raw in out]


# The second shard is small: a case that breaks a tensor replaces that file alone.
FINAL_NORM = "model.norm.weight"
NORM = "model.layers.1.input_layernorm.weight"
ROUTER = "model.layers.1.mlp.gate.weight"
DOWN = "model.layers.1.mlp.experts.3.down_proj.weight"
SMALL = [FINAL_NORM, NORM, ROUTER, DOWN]
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"


def index_of(shards):
    """shards: {file: tensors}."""
    names = {t[0]: f for f, tensors in shards.items() for t in tensors}
    size = sum(len(t[3]) for tensors in shards.values() for t in tensors)
    return (json.dumps({"metadata": {"total_size": size}, "weight_map": dict(sorted(names.items()))}, indent=0) + "\n").encode()


def tokenizer():
    """Byte-level BPE: 256 bytes and four merges."""
    printable = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    char = {b: chr(b) for b in printable}
    for b in range(256):
        char.setdefault(b, chr(256 + len(char) - len(printable)))
    vocab = {char[b]: b for b in range(256)}
    merges = [["t", "h"], ["th", "e"], [char[32], "the"], ["i", "n"]]
    for a, b in merges:
        vocab[a + b] = len(vocab)
    assert len(vocab) == VOCAB
    split = {"type": "Split", "pattern": {"Regex": r" ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s+"}, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    doc = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]}, "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "vocab": vocab, "merges": merges},
    }
    lines = json.dumps(doc, indent=1)
    return (lines + "\n").encode()


def make_base():
    tensors = base_tensors()
    small = [t for t in tensors if t[0] in SMALL]
    large = [t for t in tensors if t[0] not in SMALL]
    put("base/model/config.json", (json.dumps(CONFIG, indent=1) + "\n").encode())
    put("base/model/tokenizer.json", tokenizer())
    put(f"base/model/{FIRST}", safetensors(large))
    put(f"base/model/{SECOND}", safetensors(small))
    put(f"base/model/{INDEX}", index_of({FIRST: large, SECOND: small}))
    return small


# ---- broken tensors ------------------------------------------------------------------

def make_tensors(small):
    def case(name, change):
        put(f"files/tensor-{name}.safetensors", safetensors([t for t in map(change, small) if t]))

    def only(name, new):
        return lambda t: new(t) if t[0] == name else t

    def patched(position, value):
        return lambda t: t[:3] + (t[3][:2 * position] + bf16([value]) + t[3][2 * position + 2:],)

    case("missing", only(ROUTER, lambda t: None))
    bias = ("model.layers.1.mlp.gate.bias", "BF16", [EXPERTS], b"\0" * 2 * EXPERTS)
    put("files/tensor-surplus.safetensors", safetensors(small + [bias]))
    case("wrong-shape", only(ROUTER, lambda t: t[:2] + ([HIDDEN, EXPERTS], t[3])))
    case("wrong-rank", only(NORM, lambda t: t[:2] + ([1, HIDDEN], t[3])))
    case("wrong-dtype", only(ROUTER, lambda t: (t[0], "I8", [EXPERTS, HIDDEN], b"\1" * (EXPERTS * HIDDEN))))
    case("nan-weight", only(ROUTER, patched(5, math.nan)))
    case("inf-weight", only(NORM, patched(0, math.inf)))
    # values times 3e38, summed by o_proj, leave float32's range
    case("overflowing-activation", only(NORM, lambda t: t[:3] + (bf16([3e38] * HIDDEN),)))
    # an expert whose outputs are 0 is none of them: a case of the programs has it
    zeroed = [only(DOWN, lambda t: t[:3] + (b"\0" * len(t[3]),))(t) for t in small]
    put(f"zero-expert/model/{SECOND}", safetensors(zeroed), root=CLI)


# ---- a corpus of token ids ---------------------------------------------------------------

def make_tokens():
    rng = random.Random(7)
    rows = [[rng.randrange(VOCAB) for _ in range(24)] for _ in range(6)]
    raw = b"".join(struct.pack("<24i", *row) for row in rows)
    put("base/tokens.safetensors", safetensors([("ids", "I32", [6, 24], raw)]))


# ---- HDF5, by hand -------------------------------------------------------------------------
# The smallest subset that holds an artifact: superblock 2, object headers of
# version 2, compact links, attributes in their header, contiguous datasets.

UNDEFINED = b"\xff" * 8


def lookup3(data):
    """Jenkins' hash, the checksum of HDF5's metadata."""
    mask = 0xffffffff

    def rot(x, k):
        return (x << k | x >> (32 - k)) & mask

    a = b = c = (0xdeadbeef + len(data)) & mask
    while len(data) > 12:
        x, y, z = struct.unpack("<III", data[:12])
        a, b, c, data = (a + x) & mask, (b + y) & mask, (c + z) & mask, data[12:]
        a = (a - c & mask) ^ rot(c, 4); c = c + b & mask
        b = (b - a & mask) ^ rot(a, 6); a = a + c & mask
        c = (c - b & mask) ^ rot(b, 8); b = b + a & mask
        a = (a - c & mask) ^ rot(c, 16); c = c + b & mask
        b = (b - a & mask) ^ rot(a, 19); a = a + c & mask
        c = (c - b & mask) ^ rot(b, 4); b = b + a & mask
    if data:
        x, y, z = struct.unpack("<III", data + b"\0" * (12 - len(data)))
        a, b, c = (a + x) & mask, (b + y) & mask, (c + z) & mask
        c = ((c ^ b) - rot(b, 14)) & mask
        a = ((a ^ c) - rot(c, 11)) & mask
        b = ((b ^ a) - rot(a, 25)) & mask
        c = ((c ^ b) - rot(b, 16)) & mask
        a = ((a ^ c) - rot(c, 4)) & mask
        b = ((b ^ a) - rot(a, 14)) & mask
        c = ((c ^ b) - rot(b, 24)) & mask
    return struct.pack("<I", c)


TYPES = {
    "I32": b"\x10\x08\0\0" + struct.pack("<IHH", 4, 0, 32),
    "I64": b"\x10\x08\0\0" + struct.pack("<IHH", 8, 0, 64),
    "U64": b"\x10\x00\0\0" + struct.pack("<IHH", 8, 0, 64),
    "F64": b"\x11\x20\x3f\0" + struct.pack("<IHHBBBBI", 8, 0, 64, 52, 11, 0, 52, 1023),
}
FORMATS = {"I32": "i", "I64": "q", "U64": "Q", "F64": "d"}


def space(shape):
    return bytes([2, len(shape), 0, 1 if shape else 0]) + b"".join(struct.pack("<Q", d) for d in shape)


def message(kind, body):
    return struct.pack("<BHB", kind, len(body), 0) + body


def attribute(name, value):
    if isinstance(value, int):
        kind, raw = TYPES["I64"], struct.pack("<q", value)
    else:
        raw = value if isinstance(value, bytes) else value.encode()
        kind = b"\x13\x11\0\0" + struct.pack("<I", len(raw))
    label = name.encode() + b"\0"
    return message(0x0c, struct.pack("<BBHHHB", 3, 0, len(label), len(kind), 4, 1) + label + kind + space([]) + raw)


def object_header(messages):
    body = b"".join(messages)
    head = b"OHDR\x02\x02" + struct.pack("<I", len(body)) + body
    return head + lookup3(head)


class Dataset:
    def __init__(self, dtype, shape, values):
        assert len(values) == math.prod(shape)
        self.raw = struct.pack(f"<{len(values)}{FORMATS[dtype]}", *values)
        self.dtype, self.shape = dtype, shape

    def place(self, blob):
        """Appends the elements; the messages of the header."""
        at = len(blob)
        blob.extend(self.raw)
        return [
            message(0x01, space(self.shape)), message(0x03, TYPES[self.dtype]), message(0x05, b"\x03\x09"),
            message(0x08, b"\x03\x01" + struct.pack("<QQ", at, len(self.raw))), attribute("crc32", f"{zlib.crc32(self.raw):08x}"),
        ]


class Group:
    def __init__(self, attributes=None, members=None):
        self.attributes, self.members = attributes or {}, members or {}


class Indexed:
    """A group with more links than fit its header: a heap of links, an index over
    it, and, of wrong checksum, the index's one leaf."""
    def __init__(self, n_links):
        self.n_links = n_links

    def place(self, blob):
        """Appends heap and index; the group's link info."""
        def append(block):
            at = len(blob)
            blob.extend(block)
            return at

        leaf = append(b"BTLF" + b"\0" * 508)
        index = b"BTHD\0\x05" + struct.pack("<IHHBBQHQ", 512, 11, 0, 100, 40, leaf, self.n_links, self.n_links)
        index = append(index + lookup3(index))
        heap = b"FRHP\0" + struct.pack("<HHBIQ", 7, 0, 2, 4096, 0) + UNDEFINED + struct.pack("<Q", 0) + UNDEFINED
        heap += struct.pack("<QQQQQQQQ", 512, 512, 0, self.n_links, 0, 0, 0, 0)
        heap += struct.pack("<HQQHH", 4, 512, 65536, 32, 1) + UNDEFINED + struct.pack("<H", 0)
        heap = append(heap + lookup3(heap))
        return struct.pack("<BBQQ", 0, 0, heap, index)


class External:
    """A link into another file."""
    def __init__(self, file, path):
        self.raw = b"\0" + file.encode() + b"\0" + path.encode() + b"\0"


def link(name, target):
    label = name.encode()
    if isinstance(target, External):
        return message(0x06, b"\x01\x08\x40" + bytes([len(label)]) + label + struct.pack("<H", len(target.raw)) + target.raw)
    return message(0x06, b"\x01\x00" + bytes([len(label)]) + label + struct.pack("<Q", target))


def hdf5(root):
    blob = bytearray(48)  # the superblock's room

    def place(node):
        if isinstance(node, External):
            return node
        if isinstance(node, Dataset):
            messages = node.place(blob)
        elif isinstance(node, Indexed):
            messages = [message(0x02, node.place(blob)), message(0x0a, b"\0\0")]
        else:
            messages = [message(0x02, b"\0\0" + UNDEFINED * 2), message(0x0a, b"\0\0")]
            messages += [link(name, place(node.members[name])) for name in sorted(node.members)]
            messages += [attribute(name, node.attributes[name]) for name in sorted(node.attributes)]
        at = len(blob)
        blob.extend(object_header(messages))
        return at

    top = place(root)
    head = b"\x89HDF\r\n\x1a\n\x02\x08\x08\0" + struct.pack("<Q", 0) + UNDEFINED + struct.pack("<QQ", len(blob), top)
    blob[:48] = head + lookup3(head)
    return bytes(blob)


# ---- artifacts ---------------------------------------------------------------------------------

def exact(value):
    """A sum that is a small multiple of 2^-96, as three words."""
    n = int(value * 2 ** 96) % 2 ** 192
    return [n >> 64 * i & 2 ** 64 - 1 for i in range(3)]


def statistics():
    """Two experts, one layer, one pair seen on 8 tokens.  With u and v of norms 2
    and 4 and <v,u> = 6 on each token."""
    e = 2
    pair = {  # row = source: norm 2 and norm 4
        "dot": [0.0, 96.0, 192.0, 0.0], "target_sq": [0.0, 256.0, 128.0, 0.0], "source_sq": [0.0, 64.0, 512.0, 0.0],
        "dot0": [0.0, 48.0, 48.0, 0.0], "sq0": [0.0, 32.0, 128.0, 0.0],
    }
    expert = {"norm_sum": [16.0, 32.0], "sq_sum": [32.0, 128.0], "route_weight_sum": [4.0, 4.0], "contribution_sum": [8.0, 16.0]}
    members, sums = {}, {}
    for names, shape in ((pair, [e, e]), (expert, [e])):
        for name, values in names.items():
            members[name] = Dataset("F64", shape, values)
            sums[name] = Dataset("U64", shape + [3], [w for v in values for w in exact(v)])
    members["exact"] = Group(members=sums)
    members["count"] = Dataset("U64", [e, e], [0, 8, 8, 0])
    members["norm_count"] = Dataset("U64", [e], [8, 8])
    return Group(
        {"exfold_kind": "statistics", "exfold_version": 1, "exfold_min_reader": 1, "exfold_container": 2, "n_experts": e,
         "top_k": 2, "d_model": 4, "n_sequences": 1, "n_tokens": 8},
        {"layer_numbers": Dataset("I32", [1], [0]), "provenance": Group({"model.family": "made by hand"}),
         "layers": Group(members={"0": Group(members=members)})})


def make_artifacts():
    put("statistics-made-by-hand/statistics.h5", hdf5(statistics()), CLI)

    def case(name, change):
        root = statistics()
        change(root, root.members["layers"].members["0"].members)
        put(f"files/statistics-{name}.h5", hdf5(root))

    case("foreign-hdf5", lambda root, layer: root.attributes.clear())
    case("unknown-kind", lambda root, layer: root.attributes.update({"exfold_kind": "recipes"}))
    case("newer-min-reader", lambda root, layer: root.attributes.update({"exfold_version": 9, "exfold_min_reader": 9}))
    case("min-reader-missing", lambda root, layer: root.attributes.pop("exfold_min_reader"))
    case("min-reader-zero", lambda root, layer: root.attributes.update({"exfold_min_reader": 0}))
    case("kind-not-text", lambda root, layer: root.attributes.update({"exfold_kind": 1}))
    case("negative-experts", lambda root, layer: root.attributes.update({"n_experts": -2}))
    case("too-many-experts", lambda root, layer: root.attributes.update({"n_experts": 1 << 40}))
    case("layers-descending", lambda root, layer: root.members.update({"layer_numbers": Dataset("I32", [2], [3, 0])}))
    case("layer-missing", lambda root, layer: root.members.update({"layer_numbers": Dataset("I32", [2], [0, 1])}))
    case("provenance-missing", lambda root, layer: root.members.pop("provenance"))
    case("provenance-invalid-utf8", lambda root, layer: root.members["provenance"].attributes.update({"model.family": b"caf\xe9"}))
    case("sum-changed", lambda root, layer: layer.update({"dot": Dataset("F64", [2, 2], [0.0, 96.5, 192.0, 0.0])}))
    case("sum-nan", lambda root, layer: layer.update({"dot": Dataset("F64", [2, 2], [0.0, math.nan, 192.0, 0.0])}))
    case("sum-missing", lambda root, layer: layer.pop("source_sq"))
    case("sum-wrong-shape", lambda root, layer: layer.update({"sq0": Dataset("F64", [4], [0.0, 32.0, 128.0, 0.0])}))
    case("sum-wrong-dtype", lambda root, layer: layer.update({"count": Dataset("I64", [2, 2], [0, 8, 8, 0])}))
    case("count-not-symmetric", lambda root, layer: layer.update({"count": Dataset("U64", [2, 2], [0, 8, 7, 0])}))
    case("external-link", lambda root, layer: layer.update({"dot": External("/etc/passwd", "/dot")}))
    # libhdf5 1.10 frees pointers that it never set when such an index cannot be read
    case("link-index-damaged", lambda root, layer: layer.update({"exact": Indexed(9)}))
    root = hdf5(statistics())
    header = root.rindex(b"exfold_kind")
    put("files/statistics-header-damaged.h5", root[:header] + b"E" + root[header + 1:])
    put("files/statistics-truncated.h5", root[:len(root) // 2])


# ------------------------------------------------------------------------------------------------

def main():
    make_tokens()
    make_tensors(make_base())
    make_artifacts()
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        sys.exit(__doc__)
    surplus = [p for p in map(os.path.normpath, glob.glob(os.path.join(BAD, "files", "*"))) if p not in FILES]
    wrong = len(surplus)
    for path in surplus:
        print("not made here: " + os.path.relpath(path))
    for path, data in sorted(FILES.items()):
        old = open(path, "rb").read() if os.path.exists(path) else None
        if old == data:
            continue
        wrong += 1
        print(("differs: " if check else "wrote ") + os.path.relpath(path))
        if not check:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as f:
                f.write(data)
    sys.exit(1 if check and wrong else 0)


if __name__ == "__main__":
    main()
