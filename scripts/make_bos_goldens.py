"""Writes tests/golden/tokenizers/bos: for each family a tokenizer of bytes or characters with its release's pre_tokenizer, post_processor and
fields of tokenizer_config.json, and the ids that the installed transformers makes of some texts, beside those of other versions.
usage: make_bos_goldens.py     (once with transformers 4.57, once with 5.23)"""
import json
import os
import shutil
import tempfile

import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

OUT = "tests/golden/tokenizers/bos"
ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
QWEN = ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
MARKS = ENDINGS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TRIPLES = QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
CASED = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + ENDINGS + r"?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + ENDINGS + r"?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CODER = [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+"]
DEEPSEEK_BOS, DEEPSEEK_EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"


def split(*patterns):
    return [pre_tokenizers.Split(Regex(p), "isolated") for p in patterns]


def token(content):
    return {"__type": "AddedToken", "content": content, "lstrip": False, "normalized": True, "rstrip": False, "single_word": False}


def deepseek(model_type, steps, eos=DEEPSEEK_EOS, **more):
    config = {"add_bos_token": True, "add_eos_token": False, "bos_token": token(DEEPSEEK_BOS), "eos_token": token(eos),
              "clean_up_tokenization_spaces": False, "legacy": True, "model_max_length": 16384, "pad_token": token(DEEPSEEK_EOS),
              "sp_model_kwargs": {}, "tokenizer_class": "LlamaTokenizerFast", "unk_token": None}
    return model_type, normalizers.Sequence([]), steps, False, "byte", [DEEPSEEK_BOS, DEEPSEEK_EOS], config | more


def mixtral(normalizer, pre, legacy):
    config = {"add_bos_token": True, "add_eos_token": False, "bos_token": "<s>", "clean_up_tokenization_spaces": False,
              "eos_token": "</s>", "legacy": legacy, "model_max_length": 1000000000000000019884624838656, "pad_token": None,
              "sp_model_kwargs": {}, "tokenizer_class": "LlamaTokenizer", "unk_token": "<unk>", "use_default_system_prompt": False}
    return "mixtral", normalizer, pre, None, MIXTRAL_TOKENS[1], MIXTRAL_TOKENS, config


MIXTRAL_TOKENS = ["<unk>", "<s>", "</s>"]
BLANKS = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
QWEN_CONFIG = {"add_bos_token": False, "add_prefix_space": False, "bos_token": None, "clean_up_tokenization_spaces": False,
               "eos_token": "<|im_end|>", "errors": "replace", "model_max_length": 131072, "pad_token": "<|endoftext|>",
               "split_special_tokens": False, "tokenizer_class": "Qwen2Tokenizer", "unk_token": None}
QWEN_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
LLAMA_TOKENS = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]
# name: model_type, normalizer, steps, whether ByteLevel splits (None: Mixtral's characters), post_processor (a token: a template with it before), special tokens,
# tokenizer_config.json
FAMILIES = {
    "qwen3_moe": ("qwen3_moe", normalizers.NFC(), split(QWEN), False, "byte", QWEN_TOKENS, QWEN_CONFIG),
    "qwen3_5_moe": ("qwen3_5_moe", normalizers.NFC(), split(MARKS), False, "byte", QWEN_TOKENS, QWEN_CONFIG),
    "glm4_moe": ("glm4_moe", None, split(TRIPLES), False, "byte", ["<|endoftext|>", "[gMASK]", "<sop>", "<|user|>"],
                 {"clean_up_tokenization_spaces": False, "do_lower_case": False, "eos_token": "<|endoftext|>",
                  "model_max_length": 128000, "pad_token": "<|endoftext|>", "padding_side": "left", "remove_space": False,
                  "tokenizer_class": "PreTrainedTokenizer"}),
    "deepseek_v2": deepseek("deepseek_v2", split(r"[\r\n]", r"\s?[A-Za-zµÀ-ÖØ-öø-ƺ]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$",
                                                 "[一-龥ࠀ-一가-퟿]+") + [pre_tokenizers.Digits(individual_digits=True)]),
    "deepseek_coder": deepseek("deepseek_v2", split(*CODER) + [pre_tokenizers.Digits(individual_digits=True)]),
    "deepseek_v3": deepseek("deepseek_v3", split(r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", QWEN)),
    "deepseek_v2_with_eos": deepseek("deepseek_v2", split(*CODER), add_eos_token=True),
    "deepseek_v2_without_bos": deepseek("deepseek_v2", split(*CODER), add_bos_token=False),
    "llama3": ("llama", None, split(TRIPLES), False, LLAMA_TOKENS[0], LLAMA_TOKENS,
               {"bos_token": LLAMA_TOKENS[0], "clean_up_tokenization_spaces": True, "eos_token": LLAMA_TOKENS[2],
                "model_input_names": ["input_ids", "attention_mask"], "model_max_length": 131072,
                "tokenizer_class": "PreTrainedTokenizerFast"}),
    "olmoe": ("olmoe", normalizers.NFC(), [], True, "none", ["<|endoftext|>", "<|padding|>"],
              {"add_bos_token": False, "add_eos_token": False, "add_prefix_space": False, "bos_token": None,
               "clean_up_tokenization_spaces": True, "eos_token": "<|endoftext|>", "pad_token": "<|padding|>",
               "tokenizer_class": "GPTNeoXTokenizer", "unk_token": None}),
    "mixtral": mixtral(BLANKS, None, True),
    "mixtral_metaspace": mixtral(None, pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False), False),
    "gpt_oss": ("gpt_oss", None, split(CASED), False, "byte", ["<|startoftext|>", "<|endoftext|>", "<|return|>"],
                {"bos_token": "<|startoftext|>", "clean_up_tokenization_spaces": False, "eos_token": "<|return|>",
                 "model_input_names": ["input_ids", "attention_mask"], "model_max_length": 1000000000000000019884624838656,
                 "pad_token": "<|endoftext|>", "tokenizer_class": "PreTrainedTokenizerFast"}),
    "minimax_m2": ("minimax_m2", None, split(CASED), False, "byte", ["]~!b[", "[e~[", "]!p~["],
                   {"add_prefix_space": False, "bos_token": "]~!b[", "clean_up_tokenization_spaces": False, "eos_token": "[e~[",
                    "model_max_length": 40960000, "tokenizer_class": "GPT2Tokenizer", "unk_token": "]!d~["}),
}


def character_tokenizer(pre):
    names = MIXTRAL_TOKENS + [f"<0x{c:02X}>" for c in range(256)] + list("▁abcdefghijklmnopqrstuvwxyz'") + ["▁a"]
    t = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, [("▁", "a")], unk_token="<unk>", fuse_unk=True,
                             byte_fallback=True))
    if pre:
        t.pre_tokenizer = pre
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return t


def make_tokenizer(normalizer, steps, splits, post, specials):
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    if splits is None:
        t = character_tokenizer(steps)
    else:
        t = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
        last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=splits)
        t.pre_tokenizer = pre_tokenizers.Sequence(steps + [last]) if steps else last
        t.decoder = decoders.ByteLevel()
    if normalizer:
        t.normalizer = normalizer
    t.add_special_tokens([AddedToken(s, normalized=False, special=True) for s in specials])
    byte_level = processors.ByteLevel(add_prefix_space=True, trim_offsets=False, use_regex=True)
    if post == "byte":
        t.post_processor = byte_level
    elif post == "none":
        t.post_processor = processors.TemplateProcessing(single="$A:0", pair="$A:0 $B:1", special_tokens=[])
    else:
        t.post_processor = processors.Sequence([byte_level, processors.TemplateProcessing(
            single=f"{post}:0 $A:0", pair=f"{post}:0 $A:0 {post}:1 $B:1", special_tokens=[(post, t.token_to_id(post))])])
    return t


def main():
    for name, (model_type, normalizer, steps, splits, post, specials, config) in FAMILIES.items():
        place = f"{OUT}/{name}"
        os.makedirs(place, exist_ok=True)
        make_tokenizer(normalizer, steps, splits, post, specials).save(f"{place}/tokenizer.json", pretty=False)
        with open(f"{place}/tokenizer_config.json", "w", encoding="utf-8") as file:
            json.dump(config, file, ensure_ascii=False, indent=1)
        texts = ["", "Hello world's 2 lines\n 123", specials[0] + "x", "a " + specials[1] + specials[0] + "\n"]
        with tempfile.TemporaryDirectory() as directory:
            for file in ("tokenizer.json", "tokenizer_config.json"):
                shutil.copy(f"{place}/{file}", directory)
            with open(f"{directory}/config.json", "w", encoding="utf-8") as file:
                json.dump({"model_type": model_type}, file)
            loaded = transformers.AutoTokenizer.from_pretrained(directory)
            ids = [loaded(text).input_ids for text in texts]
        path = f"{place}/ids.json"
        golden = json.load(open(path, encoding="utf-8")) if os.path.exists(path) else {}
        golden = {"texts": texts, "4.57": golden.get("4.57"), "5.23": golden.get("5.23")}
        golden[".".join(transformers.__version__.split(".")[:2])] = ids
        with open(path, "w", encoding="utf-8") as file:
            file.write("{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in golden.items()) + "\n}\n")
        print(f"{name}: {type(loaded).__name__}: {ids[0]} {ids[1][:3]}...")


main()
