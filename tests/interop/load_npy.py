import numpy

coeff = numpy.load("npy/coeff.npy", mmap_mode="r")
loss = numpy.load("npy/loss.npy", mmap_mode="r")
target = loss[0, 3].argmin()
print(f"first layer: expert 3 is about {coeff[0, 3, target]:.4f} times expert {target}")
