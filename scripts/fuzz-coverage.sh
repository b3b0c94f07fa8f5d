#!/bin/sh
# fuzz-coverage.sh - prints what share of lines a replay of the fuzz corpora reached, for each file that reads what
# strangers wrote: of the functions that were entered, and of the whole file, which may write too.
# usage: fuzz-coverage.sh BUILD      BUILD: made by `make fuzz-coverage`, which replays the corpora
set -eu
[ $# = 1 ] || { echo "usage: fuzz-coverage.sh BUILD" >&2; exit 2; }
build=$1
for object in "$build"/src/format/*.o "$build"/src/artifact/*.o "$build"/src/model/c*.o "$build"/src/model/fam*.o \
    "$build"/src/model/quant*.o "$build"/src/tokenizer/*.o "$build"/src/capture/manifest*.o \
    "$build"/src/fold/variant.o "$build"/src/fold/variant_read.o "$build"/src/recipe/recipe*.o "$build"/kernels/fold/fold_layers.o; do
    file=${object#"$build"/}
    file=${file%.o}.c
    case $file in # those that only write, and those that need a whole checkpoint: tests/mutants has these
    *_write.c | */ptfile*.c | */npy.c) continue ;;
    */checkpoint.c) continue ;;
    esac
    gcov -n -f -o "$object" "$file" 2>/dev/null | awk -v file="$file" '
        $1 == "Function" || $1 == "File" { what = $1; mine = $2 == "\047" file "\047" }
        /^Lines executed:/ {
            split($0, part, /[:% ]+/)
            if (what == "Function" && part[3] > 0) { lines += part[5]; reached += part[3] * part[5] / 100 }
            if (what == "File" && mine) { share = part[3]; all = part[5] }
            what = ""
        }
        END { if (all) printf "%.1f %d %.1f %d %s\n", lines ? 100 * reached / lines : 0, lines, share, all, file }'
done | sort -n | awk '
    { printf "%5.1f %% of %4d lines entered, %5.1f %% of %4d  %s\n", $1, $2, $3, $4, $5
      entered += $2; reached += $1 * $2 / 100; lines += $4 }
    END { printf "%5.1f %% of %4d lines entered, %5.1f %% of %4d  in all\n", 100 * reached / entered, entered, 100 * reached / lines, lines }'
