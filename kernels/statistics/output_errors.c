/* output_errors.c - see output_errors.h. */
#include "kernels/statistics/output_errors.h"

/* Carries the six digits into a 192-bit integer. */
static exf_exact carried(const unsigned long long *digit)
{
    exf_exact out = {{0, 0, 0}};
    int64_t carry = 0;
    for (int i = 0; i < 6; i++) {
        int64_t v = (int64_t)digit[i] + carry;
        uint64_t low = (uint64_t)v & 0xffffffffu;
        out.limb[i / 2] |= low << 32 * (i & 1);
        carry = (v - (int64_t)low) / 4294967296;
    }
    return out;
}

void exf_output_errors_read(const exf_output_errors *sums, exf_exact *error_sq, exf_exact *norm_sq)
{
    exf_exact error = carried(sums->digit[0]), norm = carried(sums->digit[1]);
    exf_exact_merge(error_sq, &error);
    exf_exact_merge(norm_sq, &norm);
}
