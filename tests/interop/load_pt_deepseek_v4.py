import torch

tables = torch.load("exfold-deepseek-v4.pt", map_location="cpu", weights_only=True)
coeff, loss = tables["decode_coeff"], tables["decode_loss"]  # float32 [43, 256, 256]
target = loss[42, 3].argmin()
print(f"last layer: expert 3 is about {coeff[42, 3, target]:.4f} times expert {target}")
