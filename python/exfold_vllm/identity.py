"""Whether a model is the one that tables were calibrated on: its family, what its config.json says, and its routers' weights."""
import hashlib
import pathlib
import re

# What a calibration reads of config.json (model.architecture), and where a config has the same number under one name.
FIELDS = {"n_layers": "num_hidden_layers", "d_model": "hidden_size", "vocab": "vocab_size", "attention.n_heads": "num_attention_heads",
          "mla.n_heads": "num_attention_heads", "attention.n_kv_heads": "num_key_value_heads", "mla.kv_rank": "kv_lora_rank",
          "n_experts": "num_experts num_local_experts n_routed_experts", "top_k": "num_experts_per_tok top_k_experts",
          "d_expert": "moe_intermediate_size", "norm_eps": "rms_norm_eps", "router.scaling": "routed_scaling_factor",
          "router.n_groups": "n_group", "router.top_groups": "topk_group", "router.renormalise": "norm_topk_prob",
          "rope.theta": "rope_theta"}


def value_of(text, names):
    """A number of a config, under the first of the names that it has; None: it has none."""
    rope = getattr(text, "rope_parameters", None)
    for name in names.split():
        try:
            value = getattr(text, name, None)
        except Exception:  # transformers has a kind of its own for what differs from layer to layer
            continue
        if value is None and isinstance(rope, dict):
            value = rope.get(name)
        if isinstance(value, (int, float)):
            return float(value)
    return None


def check_config(tables, config, text, directory=None):
    """Refuses (ValueError) a model of another family, and one whose config says another number than the calibration read.  text: the
    config of the language model within config.  directory: where config.json is, if anywhere: the same bytes are the same model."""
    types, ours = tables.facts.get("model.types", tables.family).split(), {config.model_type, text.model_type}
    if not ours & set(types):
        raise ValueError(f"{tables.path} is of a {' or '.join(types)}, the model is a {' or '.join(sorted(ours))}")
    file = pathlib.Path(directory or "") / "config.json"
    if directory and file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() == tables.facts.get("model.config_sha256"):
        return
    words = tables.of_model()
    if not words:
        tables.unknown.append("the model's config.json, of which a file of an earlier program says no number")
    for word, names in FIELDS.items():
        said, found = words.get(word), value_of(text, names)
        if word == "norm_eps" and found and getattr(text, "residual_multiplier", None):  # Granite's, which a calibration divides out
            found /= text.residual_multiplier ** 2
        if said is not None and found is not None and abs(float(said) - found) > 1e-5 * abs(found):
            raise ValueError(f"{tables.path} was calibrated on another model: {word} was {said}, the model's {names.split()[0]} is "
                             f"{found:g}")


class Routers:
    """Compares the routers' weights, as they are loaded, with the digests of those of the calibration."""

    def __init__(self, tables):
        self.tables, self.same, self.others = tables, set(), {}
        self.said = dict(word.split(":") for word in tables.facts.get("model.router_digests", "").split())

    def look(self, name, tensor):
        """Looks at a tensor of the checkpoint: a router is [experts, hidden], of a layer, whatever a family calls it."""
        layer = re.search(r"layers\.(\d+)\.", name)
        if layer and layer[1] in self.said and tensor.ndim == 2 and len(tensor) == self.tables.experts:
            found = hashlib.sha256(memoryview(tensor.detach().cpu().float().contiguous().numpy())).hexdigest()
            if found == self.said[layer[1]]:
                self.same.add(int(layer[1]))
            else:
                self.others[int(layer[1])] = name

    def check(self, layers):
        """Refuses other routers in these layers; notes where none was seen."""
        wrong = sorted(set(layers) & self.others.keys() - self.same)
        if wrong:
            raise ValueError(f"{self.tables.path} is of other weights: {self.others[wrong[0]]} differs from the router of the model that "
                             f"was calibrated ({len(wrong)} of {len(layers)} layers do); calibrate this model")
        if not self.said:
            self.tables.unknown.append("the weights, of which a file of an earlier build has no digest: calibrate again")
        elif set(layers) - self.same:
            self.tables.unknown.append("the weights, which did not come through vLLM's default loader of a checkpoint")
