import h5py

with h5py.File("tables.h5") as f:
    family = f["provenance"].attrs["model.family"].decode()  # text attributes are bytes
    coeff, loss = f["coeff"][:], f["loss"][:]
target = loss[0, 3].argmin()
print(f"first layer: expert 3 is about {coeff[0, 3, target]:.4f} times expert {target}")
