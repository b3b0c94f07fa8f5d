import h5py
with h5py.File("out/demo/tables.h5") as f:
    print(f.attrs["exfold_kind"].decode(), f.attrs["exfold_version"])   # text attributes are bytes
    S, L = f["coeff"][:], f["loss"][:]                # [layers, experts, experts], row = source
    print(f["provenance"].attrs["model.family"].decode(), S.shape, S.dtype)
    print("layer", f["layer_numbers"][0], "expert 3 goes to", L[0, 3].argmin(), "times", S[0, 3, L[0, 3].argmin()])
    print("pool of 8:", f["pools/8/members"][0])
