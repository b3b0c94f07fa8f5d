from safetensors.torch import load_file

tables = load_file("tables.safetensors")
coeff, loss = tables["coeff"], tables["loss"]  # float32 [layers, experts, experts], row = source
target = loss[0, 3].argmin()  # the diagonal, and pairs without evidence, have loss 1e30
print(f"first layer: expert 3 is about {coeff[0, 3, target]:.4f} times expert {target}")
