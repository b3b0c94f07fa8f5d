from safetensors import safe_open
with safe_open("out/demo/tables.safetensors", framework="np") as f:
    print(f.metadata()["exfold_format"], f.metadata()["layer_numbers"])
    print(f.get_tensor("coeff").shape, f.get_tensor("pools.8.target_ids")[0])
