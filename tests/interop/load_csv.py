import csv

with open("csv/pairs.csv", newline="") as f:
    pairs = [p for p in csv.DictReader(f) if p["S"]]  # without evidence the cell is empty
first = [p for p in pairs if p["layer"] == pairs[0]["layer"] and p["source"] == "3"]
best = min(first, key=lambda p: float(p["loss"]))
print(f"first layer: expert 3 is about {float(best['S']):.4f} times expert {best['target']}")
