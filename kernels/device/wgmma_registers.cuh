/* wgmma_registers.cuh - macros that list the 32, 64 or 128 accumulator registers of a thread,
 * which the PTX of a warpgroup's product names one by one. */
#ifndef EXF_KERNELS_WGMMA_REGISTERS_CUH
#define EXF_KERNELS_WGMMA_REGISTERS_CUH

/* "%0, %1, ..." for the text of the instruction. */
#define EXF_REGISTERS_32 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define EXF_REGISTERS_64 \
    EXF_REGISTERS_32 ", " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define EXF_REGISTERS_128 \
    EXF_REGISTERS_64 ", " \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

/* The operands of these registers: d[i], d[i + 1], ..., read and written. */
#define EXF_SUMS_4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define EXF_SUMS_16(d, i) EXF_SUMS_4(d, i), EXF_SUMS_4(d, i + 4), EXF_SUMS_4(d, i + 8), EXF_SUMS_4(d, i + 12)
#define EXF_SUMS_32(d, i) EXF_SUMS_16(d, i), EXF_SUMS_16(d, i + 16)
#define EXF_SUMS_64(d, i) EXF_SUMS_32(d, i), EXF_SUMS_32(d, i + 32)
#define EXF_SUMS_128(d, i) EXF_SUMS_64(d, i), EXF_SUMS_64(d, i + 64)
#endif
