#compdef @program@
# Zsh completions of @program@: it says itself what may follow (src/cli/program.h).
local line word
local -a reply suffix file
for line in "${(@f)$(${~${(Q)words[1]}} --complete "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)}"; do
    case $line in
    @nospace) suffix=(-S '') ;;
    @file*) file=(${=line}) ;;
    ?*)
        word=${line%%$'\t'*}
        reply+=("${word//:/\\:}${line#"$word"}") ;;
    esac
done
reply=("${(@)reply/$'\t'/:}")
_describe -t words 'word' reply "${suffix[@]}"
((${#file})) || return
[[ -n $file[3] ]] && compset -P "${(b)file[3]}"
if [[ $file[2] == '*/' ]]; then
    _files -/
else
    _files -g "($file[2])"
fi
