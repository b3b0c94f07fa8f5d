import sys

sys.path.insert(0, "examples/transformers")
import fold_experts
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("examples/demo-model")
tokenizer = AutoTokenizer.from_pretrained("examples/demo-model")
fold_experts.Folding(model, "out/demo/tables.safetensors", "P3+D12", library="build/libexfold_fold.so.2")
prompt = tokenizer("static int compare(const void *a,", return_tensors="pt")
print(tokenizer.decode(model.generate(**prompt, do_sample=False, max_new_tokens=24)[0]))
