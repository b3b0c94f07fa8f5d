#!/usr/bin/env python3
"""Write random token ids as a corpus: FOLDER/tokens.safetensors and FOLDER/manifest.yaml.

usage: make_random_tokens.py FOLDER SEQUENCES TOKENS VOCAB

The same arguments give the same bytes.  Files that are there are not written over.  Standard library only.
"""
import array, json, os, random, struct, sys

def main():
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    folder, n, length, vocab = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    chosen = random.Random(1)
    ids = array.array("i", (chosen.randrange(vocab) for _ in range(n * length)))
    head = json.dumps({"ids": {"dtype": "I32", "shape": [n, length], "data_offsets": [0, 4 * n * length]}}).encode()
    head += b" " * (-len(head) % 8)
    with open(os.path.join(folder, "tokens.safetensors"), "xb") as f:
        f.write(struct.pack("<Q", len(head)) + head + ids.tobytes())
    with open(os.path.join(folder, "manifest.yaml"), "x", encoding="utf-8") as f:
        f.write("schema: exfold-manifest/1\n"
                "sources:\n  - {path: tokens.safetensors, format: tokens, domain: random, sha256: unpinned}\n")

main()
