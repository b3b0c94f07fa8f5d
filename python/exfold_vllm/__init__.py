"""Folding of experts in vLLM: a plugin that rewrites a router's choice by ExFold's tables (docs/serving.md).

vLLM calls register() in each of its processes.  It goes on without a plugin that cannot be imported, and would then serve an
unfolded model; what register() raises ends it.  So this file imports nothing of vLLM but its version, and whatever cannot be folded is
raised from here or while the model is loaded.  Without settings the plugin does nothing.
"""
import os

RAN = "0.32."  # the versions of vLLM in which this plugin was run


def register():
    if os.environ.get("EXFOLD_OFF", "") not in ("", "0"):
        return
    import vllm

    if vllm.__version__.startswith(RAN):
        if os.environ.get("EXFOLD_RECORD"):
            from . import record as hook
        else:
            from . import hook

        hook.install()
        return
    sentence = f"exfold_vllm folds in vLLM {RAN}*, where it was run; this is {vllm.__version__}"
    if any(os.environ.get(f"EXFOLD_{name}") for name in ("TABLES", "PREFILL", "DECODE", "RECORD")):
        raise ValueError(f"{sentence}: install that version, or serve the model unfolded with EXFOLD_OFF=1")
    from vllm.config import VllmConfig

    made = VllmConfig.__post_init__

    def checked(self, *args, **kwargs):
        if isinstance(self.additional_config, dict) and "exfold" in self.additional_config:
            raise ValueError(f'{sentence}: install that version, or leave "exfold" out of --additional-config')
        return made(self, *args, **kwargs)

    VllmConfig.__post_init__ = checked
