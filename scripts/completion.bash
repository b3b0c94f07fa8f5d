# Bash completions of @program@: it says itself what may follow (src/cli/program.h).
_exfold()
{
    local i=$COMP_CWORD word=${COMP_WORDS[COMP_CWORD]} broken='' line pattern front file
    COMPREPLY=()
    # Bash breaks words at "=" unless told otherwise: they are put together, and of the answers only the end is offered.
    while ((i > 1)) && [[ $word == =* || ${COMP_WORDS[i-1]} == = ]]; do
        i=$((i - 1)) word=${COMP_WORDS[i]}$word
    done
    [[ $COMP_WORDBREAKS == *=* ]] && broken=${word%"${word##*=}"}
    while IFS= read -r line; do
        case $line in
        @nospace) compopt -o nospace 2>/dev/null ;;
        "@file "*)
            read -r _ pattern front <<<"$line"
            compopt -o filenames 2>/dev/null
            while IFS= read -r file; do
                [[ -d $file || $file == @($pattern) ]] && file=$front$file && COMPREPLY+=("${file#"$broken"}")
            done < <(compgen -f -- "${word#"$front"}") ;;
        *) line=${line%%$'\t'*} && COMPREPLY+=("${line#"$broken"}") ;;
        esac
    done < <("${1/#\~/$HOME}" --complete "${COMP_WORDS[@]:1:i-1}" "$word" 2>/dev/null)
}
complete -F _exfold @program@
