import torch

tables = torch.load("exfold-qwen3.pt", map_location="cpu", weights_only=True)
coeff, loss = tables["coeff"], tables["loss"]  # float32 [layers of the model, experts, experts]
target = loss[0, 3].argmin()
print(f"first layer: expert 3 is about {coeff[0, 3, target]:.4f} times expert {target}")
