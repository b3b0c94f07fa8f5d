# foreign.sh - makes what others left in a directory: files under the names that our programs and scripts use, with another's
# content.  Read by run.sh.  Each name says where it comes from; $weights is a shard of a checkpoint, which nobody makes again.

# shellcheck disable=SC2154 # weights is of run.sh

# theirs PATH ... : files of somebody else, and the directories that they are in.
theirs() {
    for theirs_path; do
        case $theirs_path in */*) mkdir -p "./${theirs_path%/*}" ;; esac
        cp "$weights" "./$theirs_path" || return
    done
}

# folder_of_theirs PATH ... : folders that hold a model and notes.
folder_of_theirs() {
    for theirs_folder; do
        theirs "$theirs_folder/model-00001-of-00002.safetensors" "$theirs_folder/notes.txt"
    done
}

# Names that mean something to the shell, to a program's options or to a pattern.
hostile_names() {
    theirs '-rf' '*' '?' '[a-z]' 'a b' ' ' "it's" '"' '$(rm -rf x)' '`x`' '~' '#' '&' 'x;y' "$(printf 'new\nline')" \
        "$(printf 'turned\342\200\256h5')" "$(printf 'no\377utf8')" "$(printf 'escape\033[2J')" '--' '-' '--force'
    theirs 'folder of theirs/-rf' 'folder of theirs/*' '.hidden/.exfold'
    mkfifo pipe .pipe.0123456789ab.partial
    ln -s nowhere dangling
    ln -s ../outside/model.safetensors link-outside
    ln -s ../outside folder-outside
    ln ../outside/model.safetensors one-more-name
    mkdir empty .empty
    mkdir -m 500 read-only
    theirs unreadable
}

# src/base/file.h: temporaries .NAME.<random>.partial and their claims .exfold-<random>[-<n>]; src/base/file_directory.c:
# what an old folder is called while a new one takes its place.  0123456789ab is what EXF_TRACE_RANDOM makes the programs draw.
temporaries() {
    for name in statistics.h5 tables.h5 capture.h5 validation.md validation.json tables.safetensors exfold_recipe.yaml \
        README.md report.html losses.svg plan.json new.yaml; do
        theirs ".$name.0123456789ab.partial" ".$name.1234.partial" "$name.partial" ".$name.0123456789ab.partial.old"
    done
    for name in csv npy reap-checkpoint; do folder_of_theirs ".$name.0123456789ab.partial" ".$name.fedcba987654.partial"; done
    folder_of_theirs .csv.0123456789ab.partial.old
    theirs .statistics.h5.aaaaaaaaaaaa.partial .csv.bbbbbbbbbbbb.partial/scalars.csv .exfold-aaaaaaaaaaaa.partial
    elsewhere=$(stat -c %i ../outside)
    # claims of another directory, as a copy of one has them
    ln -s "exfold-temporary/1:$elsewhere:.statistics.h5.aaaaaaaaaaaa.partial" .exfold-aaaaaaaaaaaa
    ln -s "exfold-temporary/1:$elsewhere:.csv.bbbbbbbbbbbb.partial" .exfold-bbbbbbbbbbbb
    ln -s "exfold-temporary/1:$elsewhere:.csv.bbbbbbbbbbbb.partial/scalars.csv" .exfold-bbbbbbbbbbbb-1
    theirs .exfold-111111111111 .exfold-111111111111-1 .exfold-notes
    folder_of_theirs .exfold-222222222222
}

# What a copy of the directory does not have.  Links that claim what no claim can: other names, other directories, nothing; the
# number is that of the working directory.  A file that nobody may read.
not_copied() {
    chmod 000 unreadable
    here=$(stat -c %i .)
    ln -s "exfold-temporary/1:$here:one-more-name" .exfold-cccccccccccc
    ln -s "exfold-temporary/1:$here:../outside/model.safetensors" .exfold-dddddddddddd
    ln -s "exfold-temporary/1:$here:.csv.0123456789ab.partial/../../outside/model.safetensors" .exfold-0123456789ab-2
    ln -s "exfold-temporary/1:$here:.statistics.h5.1234.partial" .exfold-1234
    ln -s "exfold-temporary/1:$here:" .exfold-eeeeeeeeeeee
    ln -s "exfold-regenerate/1:$here:.working.zzzzzz" .exfold-working.zzzzzz
    ln -s "exfold-regenerate/1:$here:../outside" .exfold-working.outside
}

# The names that the next temporary and its claims have (EXF_TRACE_RANDOM).
guessed_claims() {
    theirs .exfold-0123456789ab .exfold-0123456789ab-1
    ln -s ../outside/model.safetensors .exfold-0123456789ab-3
}

# src/pass/resume.h: resume points of every program, as they are called below an output directory (EXF_RUN_RESUME_PREFIX, stages,
# shards) and a runtime.checkpoint.directory; src/capture/capture_recorder.c: unfinished captures.
resume_points() {
    for name in .exfold-resume-calibrate .exfold-resume-calibrate-1-of-2 calibrate calibrate-0123456789ab; do
        folder_of_theirs "$name"
        theirs "$name/resume.json" "$name/resume.json.new" "$name/.resume.json.1.partial" "$name/sums-0.safetensors" \
            "$name/hidden-1"
    done
    ln -s ../outside .exfold-resume-capture
    ln -s ../outside capture
    theirs .exfold-resume-validate validate .exfold-resume-calibrate.journal exfold-resume-point
    theirs .capture.h5.unfinished .capture.h5.unfinished.old
}

# What programs write beside tables: src/recipe/run_directory_derived.c, src/export/writer_*.c, src/run/stage_*.c,
# src/base/file.h, and shards' directories (src/run/session_shares.c).
results() {
    theirs statistics.h5 tables.h5 capture.h5 validation.json validation.md frontier.json frontier.md frontier.svg \
        sensitivities.json sensitivities.md exfold_recipe.yaml exfold-files.sha256 README.md report.html provenance.json \
        tables.safetensors expert-list.jsonl exfold-qwen3.pt exfold-deepseek-v4.pt layers.safetensors
    folder_of_theirs csv npy reap-checkpoint shard-1-of-2 shard-2-of-2
    theirs csv/exfold-files.sha256 npy/provenance.json
}

# scripts: the release job (regenerate-tables), manifests and corpora (materialize_manifest.py, render_chat.py,
# pt_to_safetensors.py, make_*.py), and the scratch directories below TMPDIR.
names_of_scripts() {
    theirs manifest.yaml validation_manifest.yaml new-manifest.yaml new-validation-manifest.yaml inputs.txt changes.txt SHA256SUMS \
        manifest.yaml.abcdefgh.partial corpus.jsonl corpus.jsonl.abcdefgh.partial tokens.safetensors moe.safetensors recipe.yaml
    folder_of_theirs recipe.damaged .new.recipe .old.recipe .working.abcdef .working.recipe .exfold-working.dir released
    theirs .working.zzzzzz .working.abcdef/holder .working.abcdef/old/recipe/tables.h5 .exfold-working.theirs
    ln -s "exfold-regenerate/1:$(stat -c %i ../outside):.working.abcdef" .exfold-working.abcdef
    for name in regenerate plan test checks docs bench predict install cli pictures demo; do
        folder_of_theirs "exfold-$name.XXXXXX"
    done
}

# Makefile, install.mk, scripts/build-directory.sh, scripts/install-files.sh
names_of_make() {
    folder_of_theirs build build-san gen stage checks
    theirs libexfold.a build/libexfold.a build/.exfold-build .exfold-build installed.sha256 share/exfold/installed.sha256.abcdef \
        share/exfold/notes lib/notes reference valgrind
}

# foreign : fills the working directory, with a directory beside it where its links lead.  not_copied and
# guessed_claims are apart.
foreign() {
    mkdir -p ../outside && cp "$weights" ../outside/model.safetensors && theirs ../outside/resume.json ../outside/hidden-1 &&
        hostile_names && temporaries && resume_points && results && names_of_scripts && names_of_make
}
