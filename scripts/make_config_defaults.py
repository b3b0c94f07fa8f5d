#!/usr/bin/env python3
"""Write what transformers makes of configs that lack a key, or have null there: tests/golden/config_defaults.json.

usage: make_config_defaults.py OUT.json DIR...      (each with a config.json)

For every DIR, and each key of its config (of a config of several models: of its text part, and of the whole), what transformers'
config class fills in where the key is absent or null.  An entry of the file:

  name     DIR; "whole": 1 where the keys are those of a whole config of several models
  given    the config: "outer", its text with @PART@ in the place of the object whose keys are taken away, and "keys", those keys
           with their values as text
  filled   the same of the config as transformers reads and writes it
  absent   for each key of `given`: the keys of `filled` that are others without it, "" for one that is gone; null: transformers
           raises an error
  null     the same where the key is null; a flag is false there, as Python's `if` takes it

tests/unit/model/check_config_defaults.c reads given without a key, which must be refused or mean what filled means with these keys
changed.  Needs transformers; keys that no forward pass over text reads are left out.
"""
import copy, json, sys

import transformers
from transformers import CONFIG_MAPPING

transformers.utils.logging.set_verbosity_error()

ALSO = {"kimi_k2": "deepseek_v3", "mistral3": "mistral4"}
PARTS = (("thinker_config", "text_config"), ("text_config",), ())
UNREAD = ("transformers_version", "torch_dtype", "dtype", "architectures", "vision_config", "audio_config", "talker_config",
          "code2wav_config", "auto_map", "quantization_config", "initializer_range", "id2label", "label2id", "problem_type",
          "chunk_size_feed_forward", "return_dict", "output_attentions", "output_hidden_states", "is_encoder_decoder", "use_cache",
          "enable_talker", "enable_audio_output", "attention_dropout", "router_aux_loss_coef", "output_router_logits")

def unread(key):
    return key in UNREAD or key.endswith(("_token_id", "_token_ids", "_token_index", "_id_per_second", "pretraining_tp"))

def part_of(config, path):
    for step in path:
        config = config[step]
    return config

def path_of(config):
    for path in PARTS:
        try:
            part_of(config, path)
            return path
        except KeyError:
            pass

def strip(config):
    """Leaves out, at every level of models, what no forward pass reads."""
    return {k: strip(v) if k in ("text_config", "thinker_config") else v for k, v in config.items() if not unread(k)}

def split(config, path):
    outer = copy.deepcopy(config)
    if path:
        part_of(outer, path[:-1])[path[-1]] = "@PART@"
        outer = json.dumps(outer, sort_keys=True).replace('"@PART@"', "@PART@")
    else:
        outer = "@PART@"
    return {"outer": outer, "keys": {k: json.dumps(v, sort_keys=True) for k, v in part_of(config, path).items()}}

def fill(config):
    kind = config["model_type"]
    made = CONFIG_MAPPING[ALSO.get(kind, kind)].from_dict(copy.deepcopy(config)).to_dict()
    made["model_type"] = kind
    return strip(json.loads(json.dumps(made)))

def difference(full, other):
    return {k: other.get(k, "") for k in sorted(full | other) if full.get(k) != other.get(k)}

def changed(config, path, key, null, filled):
    one = copy.deepcopy(config)
    part = part_of(one, path)
    if null:
        part[key] = None
    else:
        del part[key]
    try:
        new = fill(one)
        if null and isinstance(part_of(config, path)[key], bool) and part_of(new, path).get(key, 0) is None:
            part_of(new, path)[key] = False
        new = split(new, path)
    except Exception as error:
        print(f"  {key}{' null' if null else ''}: {type(error).__name__}: {str(error).splitlines()[0][:100]}", file=sys.stderr)
        return None
    return None if new["outer"] != filled["outer"] else difference(filled["keys"], new["keys"])

def entry(name, config, path, whole):
    filled = split(fill(config), path)
    keys = [k for k in part_of(config, path) if not unread(k) and k not in ("model_type", "text_config", "thinker_config")]
    return {"name": name, "whole": whole, "given": split(config, path), "filled": filled,
            "absent": {k: changed(config, path, k, 0, filled) for k in keys},
            "null": {k: changed(config, path, k, 1, filled) for k in keys}}

def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    entries = []
    for name in sys.argv[2:]:
        print(name, file=sys.stderr)
        with open(name + "/config.json", encoding="utf-8") as f:
            config = strip(json.load(f))
        path = path_of(config)
        entries.append(entry(name, config, path, 0))
        if path:
            entries.append(entry(name, config, (), 1))
    with open(sys.argv[1], "x", encoding="utf-8") as f:
        json.dump({"transformers": transformers.__version__, "configs": entries}, f, indent=0, sort_keys=True)
        f.write("\n")

main()
