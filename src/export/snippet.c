/* snippet.c - see snippet.h. */
#include "export/snippet.h"

#include <stddef.h>
#include <string.h>

static const exf_snippet snippets[] = {
    {"csv", "csv", "CSV, with Python's own module",
     "import csv\n"
     "\n"
     "with open(\"csv/pairs.csv\", newline=\"\") as f:\n"
     "    pairs = [p for p in csv.DictReader(f) if p[\"S\"]]  # without evidence the cell is empty\n"
     "first = [p for p in pairs if p[\"layer\"] == pairs[0][\"layer\"] and p[\"source\"] == \"3\"]\n"
     "best = min(first, key=lambda p: float(p[\"loss\"]))\n"
     "print(f\"first layer: expert 3 is about {float(best['S']):.4f} times expert {best['target']}\")\n"},
    {"exfold-deepseek-v4", "pt_deepseek_v4", "The plugin's file, with PyTorch",
     "import torch\n"
     "\n"
     "tables = torch.load(\"exfold-deepseek-v4.pt\", map_location=\"cpu\", weights_only=True)\n"
     "coeff, loss = tables[\"decode_coeff\"], tables[\"decode_loss\"]  # float32 [43, 256, 256]\n"
     "target = loss[42, 3].argmin()\n"
     "print(f\"last layer: expert 3 is about {coeff[42, 3, target]:.4f} times expert {target}\")\n"},
    {"exfold-qwen3", "pt_qwen3", "The plugin's file, with PyTorch",
     "import torch\n"
     "\n"
     "tables = torch.load(\"exfold-qwen3.pt\", map_location=\"cpu\", weights_only=True)\n"
     "coeff, loss = tables[\"coeff\"], tables[\"loss\"]  # float32 [layers of the model, experts, experts]\n"
     "target = loss[0, 3].argmin()\n"
     "print(f\"first layer: expert 3 is about {coeff[0, 3, target]:.4f} times expert {target}\")\n"},
    {"hdf5", "hdf5", "HDF5, with h5py",
     "import h5py\n"
     "\n"
     "with h5py.File(\"tables.h5\") as f:\n"
     "    family = f[\"provenance\"].attrs[\"model.family\"].decode()  # text attributes are bytes\n"
     "    coeff, loss = f[\"coeff\"][:], f[\"loss\"][:]\n"
     "target = loss[0, 3].argmin()\n"
     "print(f\"first layer: expert 3 is about {coeff[0, 3, target]:.4f} times expert {target}\")\n"},
    {"npy", "npy", "NumPy",
     "import numpy\n"
     "\n"
     "coeff = numpy.load(\"npy/coeff.npy\", mmap_mode=\"r\")\n"
     "loss = numpy.load(\"npy/loss.npy\", mmap_mode=\"r\")\n"
     "target = loss[0, 3].argmin()\n"
     "print(f\"first layer: expert 3 is about {coeff[0, 3, target]:.4f} times expert {target}\")\n"},
    {"safetensors", "safetensors", "safetensors, with PyTorch",
     "from safetensors.torch import load_file\n"
     "\n"
     "tables = load_file(\"tables.safetensors\")\n"
     "coeff, loss = tables[\"coeff\"], tables[\"loss\"]  # float32 [layers, experts, experts], row = source\n"
     "target = loss[0, 3].argmin()  # the diagonal, and pairs without evidence, have loss 1e30\n"
     "print(f\"first layer: expert 3 is about {coeff[0, 3, target]:.4f} times expert {target}\")\n"},
};

const exf_snippet *exf_snippet_find(const char *target)
{
    for (size_t i = 0; i < sizeof snippets / sizeof *snippets; i++)
        if (strcmp(snippets[i].target, target) == 0) return &snippets[i];
    return NULL;
}
