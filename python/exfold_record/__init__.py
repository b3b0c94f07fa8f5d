"""Records statistics of a mixture of experts while transformers or vLLM runs it (docs/any-model.md).

    python3 -m exfold_record MODEL IDS.safetensors -o out

Statistics need nothing of a model's attention: only which experts a token took, with which weights, and what each of them put out.
So the engine's own experts are called once more, a slot at a time with weight 1, and what they put out is added up by
libexfold_accumulate (include/exfold/accumulate.h) into statistics.h5, of which exfold-solve makes tables.
"""
