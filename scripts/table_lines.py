#!/usr/bin/env python3
"""Write the rows of Parquet and Arrow tables as JSON lines, for a pipe into a program.

    python3 scripts/table_lines.py data/ | exfold-calibrate --model MODEL --text - -o out

A directory stands for its .parquet and .arrow files and those of its folders, in byte order of their paths; hidden ones are left
out.  Rows come in the order of the files, a JSON object a line, whose members are the columns: ExFold finds text, messages,
conversations, prompt and completion, instruction and output, or input_ids among them, or --text-field names others.  Columns of
bytes (pictures, sound) are left out, and said; --columns takes only those that it names.  The tables are read a piece at a time.
Needs pyarrow.
"""
import argparse
import math
import os
import sys

from render_chat import Failure, first_line, run, write_pipe

BATCH = 1024


def tables_of(paths):
    """The files that are meant, each once."""
    for path in paths:
        if not os.path.isdir(path):
            yield path
            continue
        found = []
        for folder, folders, names in os.walk(path):
            folders[:] = [f for f in folders if not f.startswith(".")]
            found += [os.path.join(folder, n) for n in names if n.endswith((".parquet", ".arrow")) and not n.startswith(".")]
        if not found:
            raise Failure(3, f"{path}: holds no .parquet and no .arrow file")
        yield from sorted(found, key=os.fsencode)


def holds_bytes(kind):
    """Whether a column of that type has bytes somewhere."""
    import pyarrow.types as t

    if t.is_binary(kind) or t.is_large_binary(kind) or t.is_fixed_size_binary(kind):
        return True
    return any(holds_bytes(kind.field(i).type) for i in range(kind.num_fields)) if t.is_nested(kind) else False


def columns_of(schema, wanted, path):
    for name in wanted or []:
        if name not in schema.names:
            raise Failure(3, f'{path}: has no column "{name}"; it has {", ".join(schema.names)}')
    if wanted:
        return wanted
    left = [f.name for f in schema if holds_bytes(f.type)]
    if left:
        print(f"{os.path.basename(sys.argv[0])}: {path}: left out, being bytes: {', '.join(left)}", file=sys.stderr)
    return [name for name in schema.names if name not in left]


def batches_of(path, wanted):
    """Pieces of a table."""
    import pyarrow

    try:
        with open(path, "rb") as f:
            begin = f.read(6)
        if begin[:4] == b"PAR1":
            import pyarrow.parquet

            table = pyarrow.parquet.ParquetFile(path)
            yield from table.iter_batches(BATCH, columns=columns_of(table.schema_arrow, wanted, path))
            return
        with pyarrow.OSFile(path) as f:
            if begin == b"ARROW1":
                reader = pyarrow.ipc.open_file(f)
                batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
            else:
                batches = reader = pyarrow.ipc.open_stream(f)
            columns = columns_of(reader.schema, wanted, path)
            for batch in batches:
                for at in range(0, batch.num_rows, BATCH):
                    yield batch.slice(at, BATCH).select(columns)
    except OSError as e:
        raise Failure(4 if isinstance(e, FileNotFoundError | PermissionError) else 5, f"{path}: {first_line(e)}") from e
    except pyarrow.ArrowException as e:
        raise Failure(5, f"{path}: cannot be read as a Parquet or Arrow table: {first_line(e)}") from e


def plain(value):
    """The value as JSON has it: dates and decimals as text, what is no number as null."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [plain(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("tables", nargs="+", metavar="FILE|DIRECTORY")
    p.add_argument("--columns", type=lambda s: s.split(","), metavar="NAME,...", help="only these")
    args = p.parse_args()
    write_pipe(plain(row) for path in tables_of(args.tables) for batch in batches_of(path, args.columns) for row in batch.to_pylist())


if __name__ == "__main__":
    run(main)
