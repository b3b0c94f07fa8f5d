/* snippet.c - see snippet.h. */
#include "export/snippet.h"

#include <string.h>

/* Of tables.h5, which is no export. */
static const exf_snippet hdf5 = {
    "hdf5", "HDF5, with h5py",
    "import h5py\n"
    "\n"
    "with h5py.File(\"tables.h5\") as f:\n"
    "    family = f[\"provenance\"].attrs[\"model.family\"].decode()  # text attributes are bytes\n"
    "    coeff, loss = f[\"coeff\"][:], f[\"loss\"][:]\n"
    "target = loss[0, 3].argmin()\n"
    "print(f\"first layer: expert 3 is about {coeff[0, 3, target]:.4f} times expert {target}\")\n"};

const exf_snippet *exf_snippet_find(const char *target)
{
    const exf_writer *w = exf_writer_find(target);
    if (w) return w->load.code ? &w->load : NULL;
    return strcmp(target, "hdf5") == 0 ? &hdf5 : NULL;
}
