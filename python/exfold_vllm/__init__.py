"""Folding of experts in vLLM: a plugin that rewrites a router's choice by ExFold's tables (docs/serving.md).

vLLM calls register() in each of its processes.  It goes on without a plugin that cannot be imported, and would then serve an
unfolded model; what register() raises ends it.  So this file imports nothing, and whatever cannot be folded is raised from here
or while the model is loaded.
"""


def register():
    from . import hook

    hook.install()
