# special.sh - what no row of runs.txt says: each function special_NAME is a case of its own.  Read by run.sh.

# shellcheck disable=SC2034,SC2154 # variables of run.sh

# The test can fail: each of these does to a file of others what no program of ours may do, and most put it back.
special_the_tracer_sees() {
    while IFS= read -r command; do
        empty && (cd "$D/H" && theirs one other 'a folder/one' && mkdir nothing) && before && traced "$command"
        said=$(wrong)
        case $said in *' was touched: '*) said= ;; *) said=" the tracer does not see it: $said" ;; esac
        verdict "$command" "$said"
    done <<'END'
rm one
unlink one
rm -r 'a folder'
find . -name one -delete
rmdir nothing
mv one new
mv other one
cp -p one copy; mv one new; mv new one
cp -p one copy; rm one; mv copy one
ln -sf other one
cp other one
: >one
cat one >copy; cat copy >one
echo >>one
truncate -s 5 one
truncate -s +0 one
dd if=other of=one conv=notrunc count=0 2>/dev/null
sed -i s/a/b/ one
install other one
chmod 600 one
touch -r one one
mv 'a folder' new
mv ../outside new; mv new ../outside
END
    while IFS= read -r command; do
        command -v python3 >/dev/null || break
        empty && (cd "$D/H" && theirs one other && mkdir nothing) && before && traced "python3 -c '$command'"
        said=$(wrong)
        case $said in *' was touched: '*) said= ;; *) said=" the tracer does not see it: $said" ;; esac
        verdict "python: $command" "$said"
    done <<'END'
import os; os.unlink("one")
import os; os.replace("other", "one")
import os; os.rename("one", "new"); os.rename("new", "one")
import shutil; shutil.rmtree("nothing")
open("one", "w")
open("one", "ab")
open("one", "r+b")
import os; os.truncate("one", os.path.getsize("one"))
import os; os.chmod("one", 0o600)
END
    while IFS= read -r command; do
        empty && (cd "$D/H" && theirs one other && mkdir nothing) && before && traced "$command"
        verdict "harmless: $command" "$(as_clean; wrong)"
    done <<'END'
cat one; ls -l; ln one new; cp one copy; ln -s one link; mkdir made
: >made; echo >>made; mv made new; rm new
mkdir nothing/made; : >nothing/made/x; rm -r nothing/made
rm -f absent
END
}

stopped_point() { # COMMAND : stops it half-way; $point is the name in H of what it goes on from
    empty && EXF_TRACE='' traced "exec env LD_PRELOAD=$killer EXF_KILL_COUNT=$D.count $1" && read -r calls <"$D.count" || return
    empty && EXF_TRACE='' traced "exec env LD_PRELOAD=$killer EXF_KILL_AT=$((calls / 2)) $1"
    point=$(cd "$D/H" && find . -name exfold-resume-point -o -name resume.json | head -n 1)
    point=${point#./}
    point=${point%/*}
    [ -n "$point" ] && cp -a "$D/H/$point" "$D.point"
}

# A foreign thing under the very name of a run's resume point: the run is refused by name, whatever it is asked to do.
special_names_of_resume_points() {
    saving='--set runtime.checkpoint.every_layers=1'
    for where in '-o $H' '-o $H/../made --set runtime.checkpoint.directory=$H'; do
        for stage in calibrate capture validate; do
            command="$BIN/exfold-$stage -q $I/recipe.yaml $where $saving"
            [ $stage != validate ] || command="$command --tables $I/made/tables.h5"
            rm -rf "$D.point"
            stopped_point "$command" || { verdict "$stage-stopped" " is not stopped with a resume point;"; continue; }
            for way in weights records link link-to-point file pipe stranger journal empty-journal; do
                for resume in auto require never; do
                    empty
                    case $way in
                    weights) (cd "$D/H" && folder_of_theirs "$point") ;;
                    records) (cd "$D/H/" && theirs "$point/resume.json" "$point/sums-0.safetensors" "$point/hidden-1") ;;
                    link) ln -s ../outside "$D/H/$point" ;;
                    link-to-point) cp -a "$D.point" "$D/outside/point" && ln -s ../outside/point "$D/H/$point" ;;
                    file) cp "$weights" "$D/H/$point" ;;
                    pipe) mkfifo "$D/H/$point" ;;
                    stranger) cp -a "$D.point" "$D/H/$point" && cp "$weights" "$D/H/$point/model.safetensors" ;;
                    journal) mkdir "$D/H/$point" && cp "$weights" "$D/H/$point/exfold-resume-point" ;;
                    empty-journal) (cd "$D/H" && theirs "$point/model.safetensors" && : >"$point/exfold-resume-point") ;;
                    esac
                    # a journal is opened for writing before its lock is taken and it is read; nothing is written then
                    before && traced "$command --resume=$resume" && sed -i '/^write 0 .*\/exfold-resume-point$/d' "$D.log"
                    verdict "$stage-$way-$resume${where#-o ?H}" "$(unnamed "$point"; refused; wrong)"
                done
            done
        done
    done
}

# A directory of nobody's is looked at.
special_verify() {
    full && before && traced "$BIN/exfold-inspect verify $D/H"
    verdict verify "$(unnamed "$D/H"; refused; wrong)"
}

# Nor is an unfinished capture taken that the run did not make.
special_unfinished_capture() {
    command="$BIN/exfold-capture -q $I/recipe.yaml -o $D/H --set runtime.checkpoint.every_layers=1"
    for way in file link folder pipe; do
        for options in '' --force --resume=never '--resume=require'; do
            empty && takes $way .capture.h5.unfinished && before && traced "$command $options"
            verdict "$way$options" "$(unnamed "$D/H"; refused; wrong)"
        done
    done
}

# What names the results of tables that are replaced have, with another's content; the tables are what the user ordered.
special_beside_replaced_tables() {
    for command in "solve -q -o $D/H $I/made/statistics.h5 --set calibrate.ridge=0.5" \
        "calibrate -q -o $D/H $I/recipe.yaml --set calibrate.ridge=0.5" "validate -q $I/recipe.yaml -o $D/H --frontier" \
        "export -q $I/recipe.yaml -o $D/H --set output.targets=csv,npy,card,safetensors"; do
        full tables.h5 statistics.h5 && without_points && cp "$I/made/tables.h5" "$D/H" && before
        command="$BIN/exfold-$command --force"
        inode=$(stat -c %d:%i "$D/H/tables.h5") allowed=tables.h5
        case $command in
        *validate*) rm "$D/H/validation.json" "$D/H/validation.md" "$D/H"/frontier.* ;;
        *calibrate*) rm "$D/H/tables.safetensors" "$D/H/exfold_recipe.yaml" ;;
        *export*) rm "$D/H/tables.safetensors" "$D/H/README.md" "$D/H/exfold_recipe.yaml" ;;
        esac
        before && traced "$command"
        verdict "${command#"$BIN"/}" "$(unnamed "$D/H"; wrong "$inode")"
        allowed=
    done
}

# An export's own folder, in which somebody put something: nothing of it is replaced.
special_folders_with_strangers() {
    command="$BIN/exfold-export -q $I/recipe.yaml $I/made/tables.h5 -o $D/H --set output.targets=csv"
    for way in file hidden link folder pipe changed no-list list-of-theirs; do
        empty && EXF_TRACE='' traced "$command"
        case $way in
        hidden) cp "$weights" "$D/H/csv/.theirs" ;;
        changed) for file in "$D"/H/csv/*.csv; do echo theirs >>"$file"; break; done ;;
        no-list) rm "$D/H/csv/exfold-files.sha256" ;;
        list-of-theirs) (cd "$D/H/csv" && cp "$weights" theirs.csv && sha256sum -- * >../list && mv ../list exfold-files.sha256) ;;
        *) takes $way csv/theirs ;;
        esac
        before && traced "$command --force"
        verdict "$way" "$(refused 4; unnamed "$D/H/csv"; wrong)"
    done
}

# --pin-manifest is the user's order to write into the manifest: that file alone, and no link.
special_pinned_manifest() {
    command="$BIN/exfold-capture -q $I/recipe.yaml --set data.manifest=$D/H/manifest.yaml --pin-manifest"
    pinned() { sed "s|path: |path: $I/|; s|{path: |{path: $I/|" "$I/manifest.yaml" >"$1"; }
    full manifest.yaml && pinned "$D/H/manifest.yaml" && before
    inode=$(stat -c %d:%i "$D/H/manifest.yaml") allowed=manifest.yaml
    traced "$command"
    verdict file "$([ "$status" = 0 ] || printf ' status %s;' "$status"; wrong "$inode")"
    allowed=
    empty && pinned "$D/outside/manifest.yaml" && ln -s ../outside/manifest.yaml "$D/H" && before && traced "$command"
    verdict link "$(refused 4; unnamed "$D/H/manifest.yaml"; wrong)"
}

# The release job: what stands in a release's place, and a working directory whose name somebody has.
special_releases() {
    command="$SOURCE/scripts/regenerate-tables --state $D/H $I/recipe.yaml"
    for release in recipe recipe.candidate; do
        for way in file link link-to-folder folder pipe; do
            empty && takes $way $release && before && traced "$command"
            verdict "$release-$way" "$(refused 4; unnamed "$release"; wrong)"
        done
        empty && EXF_TRACE='' traced "$command" && { [ $release = recipe ] || mv "$D/H/recipe" "$D/H/$release"; }
        cp "$weights" "$D/H/$release/theirs"
        before && traced "$SOURCE/scripts/regenerate-tables --set calibrate.ridge=0.5 --state $D/H $I/recipe.yaml"
        verdict "$release-stranger" "$(refused 4; unnamed "$release"; wrong)"
    done
    for way in file folder link-to-folder; do # what mktemp -u found free is somebody's by the time that it is made
        for taken in .working.theirs .exfold-working.theirs; do
            empty && takes $way $taken && mkdir "$D/H/bin" &&
                printf '#!/bin/sh\necho %s/.working.theirs\n' "$D/H" >"$D/H/bin/mktemp" && chmod +x "$D/H/bin/mktemp"
            before && traced "PATH=$D/H/bin:\$PATH $command"
            verdict "$taken-$way" "$(refused; wrong)"
        done
    done
}

# make: the directories that it is given.
special_make() {
    for target in clean all check-reference check-valgrind install; do
        for build in build H; do
            full && before
            [ $build = H ] && place=$D/H || place=$D/H/build
            traced "exec ${MAKE:-make} -s --no-print-directory -C $SOURCE $target CUDA=0 BUILD=$place PREFIX=$D/made"
            verdict "$target-$build" "$(refused; grep -qF "$place" "$D.err" || printf ' is not named;'; wrong)"
        done
    done
}

# The test runners that empty a directory below BUILD.
special_runners() {
    full && mkdir "$D/H/bin" && theirs_of_builds && before
    traced "BUILD=$D/H EACH=1 $SOURCE/tests/mutants/run.sh >&2"
    verdict mutants "$(refused; unnamed "$D/H"; wrong)"
}

# What a runner looks for in BUILD, and a folder where it wants to make one.
theirs_of_builds() {
    (cd "$D/H" && cp "$BIN"/exfold-* bin && folder_of_theirs mutants)
}

# Installing into and removing from a directory of others: installed.sha256 of another place, copied with what it lists.
special_install() {
    script=$SOURCE/scripts/install-files.sh
    for taken in bin/exfold lib/libexfold_fold.so share/exfold/installed.sha256; do
        for way in file link folder pipe; do
            full && mkdir -p "$D/H/${taken%/*}" "$D/stage/$D/H/bin" "$D/stage/$D/H/lib" && takes $way $taken
            echo new >"$D/stage/$D/H/bin/exfold" && ln -s nowhere "$D/stage/$D/H/lib/libexfold_fold.so"
            before && traced "$script install $D/stage '' $D/H/share/exfold/installed.sha256"
            verdict "install-$taken-$way" "$(refused; unnamed "$taken"; wrong)"
            case $taken in *.sha256) ;; *) continue ;; esac
            before && traced "$script uninstall '' $D/H/share/exfold/installed.sha256"
            verdict "uninstall-$taken-$way" "$(refused; unnamed "$taken"; wrong)"
        done
    done
    full && mkdir -p "$D/stage/$D/other/bin" && echo new >"$D/stage/$D/other/bin/exfold"
    EXF_TRACE='' traced "$script install $D/stage '' $D/other/share/exfold/installed.sha256"
    cp -R "$D/other/bin" "$D/other/share" "$D/H" && before
    traced "exec ${MAKE:-make} -s --no-print-directory -C $SOURCE uninstall BUILD=$BUILD PREFIX=$D/H"
    verdict uninstall-copy "$(refused; unnamed "$D/H/share/exfold/installed.sha256"; wrong)"
    full && mkdir -p "$D/stage/$D/H/bin" && echo new >"$D/stage/$D/H/bin/exfold" && before
    list=$D/H/share/exfold/installed.sha256
    traced "$script install $D/stage '' $list && $script uninstall '' $list"
    verdict install-around "$(as_clean; wrong)"
}

# Ranks write parts of files that rank 0 makes.
special_ranks() {
    case $("$BIN/exfold-calibrate" --version) in *", MPI)") ;; *) left_out "built without MPI"; return ;; esac
    command -v mpirun >/dev/null || { left_out "there is no mpirun"; return; }
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 \
        OMPI_MCA_hwloc_base_binding_policy=none
    for stage in calibrate capture; do
        command="MALLOC_PERTURB_=0 exec mpirun -n 2 $BIN/exfold-$stage -q $I/recipe.yaml -o $D/H"
        full statistics.h5 tables.h5 capture.h5 tables.safetensors exfold_recipe.yaml && without_points && before
        traced "$command"
        verdict "$stage-around" "$(as_clean; wrong)"
        full statistics.h5 tables.h5 tables.safetensors exfold_recipe.yaml && before
        traced "$command --set runtime.checkpoint.every_layers=1"
        verdict "$stage-points" "$(unnamed "$D/H/"; wrong)"
    done
}
