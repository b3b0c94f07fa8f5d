/* cublas_load.cu - finds cuBLAS at run time; see cublas_load.cuh. */
#include "kernels/linear/cublas_load.cuh"

#include <cstdio>
#include <dlfcn.h>

/* dlsym gives data pointers; POSIX promises that they hold functions. */
template <class F> static bool find(void *library, const char *name, F *f)
{
    *f = reinterpret_cast<F>(dlsym(library, name));
    return *f != nullptr;
}

const exf_cublas *exf_cublas_load(exf_err *err)
{
    static exf_cublas table;
    static bool loaded;
    char name[64];
    if (loaded) return &table;
    snprintf(name, sizeof name, "libcublas.so.%d", CUBLAS_VER_MAJOR);
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        exf_fail(err, EXF_DEVICE, "cuBLAS cannot be loaded: %s", dlerror());
        return nullptr;
    }
    loaded = find(library, "cublasCreate_v2", &table.create) && find(library, "cublasDestroy_v2", &table.destroy) &&
             find(library, "cublasSetStream_v2", &table.set_stream) &&
             find(library, "cublasGetStatusString", &table.status_string) && find(library, "cublasGemmEx", &table.gemm) &&
             find(library, "cublasGemmStridedBatchedEx", &table.gemm_batched);
    if (loaded) return &table;
    exf_fail(err, EXF_DEVICE, "%s lacks a function that is needed", name);
    return nullptr;
}
