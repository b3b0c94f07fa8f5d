# functions.sh - what setup, cmd and after of a case may call.

# edit SED-SCRIPT FILE ... : in place; `sed -i` is no POSIX.
edit() {
    edit_script=$1
    shift
    for edit_file; do
        sed "$edit_script" "$edit_file" >.edited
        # an edit that misses would leave a test of nothing
        ! cmp -s .edited "$edit_file" || { echo "edit changes nothing in $edit_file: $edit_script" >&2; exit 97; }
        cat .edited >"$edit_file"
        rm .edited
    done
}

# must_fail STATUS COMMAND ...
must_fail() {
    must_status=$1
    shift
    got_status=0
    "$@" || got_status=$?
    [ "$got_status" = "$must_status" ] || { echo "status $got_status, expected $must_status: $*" >&2; exit 98; }
}

# must_not COMMAND ... : `set -e` does not look at the status of `! COMMAND`.
must_not() {
    ! "$@" || { echo "succeeds: $*" >&2; exit 98; }
}

# must_say FILE TEXT ... : each text is somewhere in the file.
must_say() {
    must_file=$1
    shift
    for must_text; do
        grep -qF -e "$must_text" "$must_file" || { echo "$must_file lacks: $must_text" >&2; exit 98; }
    done
}

# tensor_data FILE.safetensors : the bytes after the header, which holds provenance.
tensor_data() {
    tensor_header=$(od -A n -t u8 -N 8 "$1")
    tail -c "+$((tensor_header + 9))" "$1"
}

# flip FILE OFFSET : one bit of the byte at the offset, in place.
flip() {
    flip_byte=$(od -A n -t u1 -j "$2" -N 1 "$1")
    # shellcheck disable=SC2059  # the format is the byte
    printf "\\$(printf %o $((flip_byte ^ 1)))" | dd of="$1" bs=1 seek="$2" conv=notrunc 2>/dev/null
}

# poke FILE OFFSET BYTES : overwrites; the bytes are a format of printf.
poke() {
    # shellcheck disable=SC2059  # the format is the bytes
    printf "$3" | dd of="$1" bs=1 seek="$2" conv=notrunc 2>/dev/null
}

# cut_to N FILE : leaves the file's first N bytes.
cut_to() {
    head -c "$1" "$2" >.cut
    cat .cut >"$2"
    rm .cut
}

# calibrated DIRECTORY : what a calibration of the base makes, which run.sh made once for all cases.
calibrated() {
    cp -R "$CALIBRATED" "$1"
}

# u64 N : the number as eight bytes, the lowest first.
u64() {
    u64_rest=$1
    set -- 0 1 2 3 4 5 6 7
    while [ $# -gt 0 ]; do
        # shellcheck disable=SC2059  # the format is the byte
        printf "\\$(printf %03o $((u64_rest % 256)))"
        u64_rest=$((u64_rest / 256))
        shift
    done
}

# safetensors N HEADER ... : a file of this header, whatever it says, and N bytes of zeros.
safetensors() {
    safetensors_data=$1
    shift
    safetensors_header=$(printf %s "$@")
    u64 ${#safetensors_header}
    printf %s "$safetensors_header"
    head -c "$safetensors_data" /dev/zero
}

# lfs_pointer : what git leaves of a large file that was not fetched.
lfs_pointer() {
    echo 'version https://git-lfs.github.com/spec/v1'
    echo 'oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393'
    echo 'size 12345'
}

# tiktoken_model : puts in place of model/tokenizer.json what a release without one has: a tiktoken.model of the 256 bytes, a
# tokenizer_config.json, and the golden's Python file, with four special tokens.
tiktoken_model() {
    rm model/tokenizer.json
    awk 'BEGIN {
        digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
        for (c = 0; c < 256; c++) print substr(digits, int(c / 4) + 1, 1) substr(digits, c % 4 * 16 + 1, 1) "== " c
    }' >model/tiktoken.model
    sed 's/^\( *num_reserved_special_tokens = \).*/\14/' "$ROOT/tests/golden/tokenizers/released/kimi_k2/tokenization_kimi.py" \
        >model/tokenization_kimi.py
    echo '{"auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", null]}, "bos_token": "[BOS]",' \
        '"added_tokens_decoder": {"256": {"content": "[BOS]"}}}' >model/tokenizer_config.json
}

# hdf5_may_leak : for files at which libhdf5 itself leaks.
hdf5_may_leak() {
    export LSAN_OPTIONS="${LSAN_OPTIONS:+$LSAN_OPTIONS:}suppressions=$ROOT/tests/cli/lsan.supp:print_suppressions=0"
}

# snapshot : what lies below the working directory, contents and all.
snapshot() {
    find . ! -type f | LC_ALL=C sort
    find . -type f -exec cksum {} + | LC_ALL=C sort -k 3
}

# has_ranks : whether programs run as ranks; says so if not, since a test is left out then.
has_ranks() {
    case $("$BIN/exfold-calibrate" --version) in
    *", MPI)") command -v mpirun >/dev/null && return 0 ;;
    esac
    echo "SKIPPED: not built with MPI" >&2
    return 1
}

# ranks N COMMAND ... : as N ranks of a job, whatever the processors and the user; a job that hangs is a failure.
# Open MPI's own mpirun reads freed memory when a rank aborts, so that memory is not perturbed; its modules lose
# memory and are unloaded, so that no suppression has a name for it: leaks are looked for where one process runs.
ranks() {
    ranks_n=$1
    shift
    MALLOC_PERTURB_=0 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 \
        OMPI_MCA_hwloc_base_binding_policy=none \
        ASAN_OPTIONS="${ASAN_OPTIONS:-exitcode=99}:detect_leaks=0:verify_asan_link_order=0" timeout "$((CASE_SECONDS / 2))" mpirun -n "$ranks_n" "$@"
}

# chatml_model : gives the case's model a chat template that marks messages as ChatML does.
chatml_model() {
    cat >model/chat_template.jinja <<'END'
{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}
END
}

# fill FILE.safetensors NAMES OCTAL : every byte of the tensors whose names match becomes this one.
fill() {
    fill_header=$(od -A n -t u8 -N 8 "$1")
    head -c $((fill_header + 8)) "$1" | tail -c +9 | tr '}' '\n' |
        sed -n "s/.*\"$2\":{.*\"data_offsets\":\[\([0-9]*\),\([0-9]*\)\].*/\1 \2/p" >.filled
    [ -s .filled ] || { echo "fill: $1 has no tensor $2" >&2; exit 97; }
    while read -r fill_from fill_to; do
        head -c $((fill_to - fill_from)) /dev/zero | tr '\0' "\\$3" |
            dd of="$1" bs=1 seek=$((fill_header + 8 + fill_from)) conv=notrunc 2>/dev/null
    done <.filled
    rm .filled
}
