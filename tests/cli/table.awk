# table.awk - reads a table of cases, tests/bad/*.cases; the top of each says what a case is made of.
# usage: awk -v mode=list -f table.awk TABLE                               the names of the cases, one a line
#        awk -v mode=unpack -v name=NAME -v into=DIR -f table.awk TABLE    a case as files: setup, cmd, status, error
#        awk -v mode=shell -f table.awk TABLE                              the shell of all cases, each on its own line
# A table that is not well formed ends it with status 2 and a message that names the line.

function refuse(why) {
    print FILENAME ":" FNR ": " why >"/dev/stderr"
    refused = 1
    exit 2
}

function show_shell(line) {
    if (mode == "shell") print line
}

# Adds a line to the lines of shell that are being read.
function add_line(line) {
    if (key == "common") common = common line "\n"
    else lines[key] = lines[key] line "\n"
    show_shell(line)
}

function begin_case() {
    if (name_read !~ /^[a-z0-9-]+$/) refuse("\"" name_read "\" is no name of a case: small letters, digits and -")
    if (name_read in is_case) refuse("a second case " name_read)
    is_case[name_read] = 1
    if (n_cases++ == 0) for (k in lines) default_lines[k] = lines[k]
    split("", given)
    split("", lines)
    for (k in default_lines) lines[k] = default_lines[k]
    if (mode == "list") print name_read
    show_shell("( :")
}

function write_case() {
    if ("setup" in lines) printf "%s%s", common, lines["setup"] >(into "/setup")
    if ("run" in lines) printf "%s%s", common, lines["run"] >(into "/cmd")
    print status >(into "/status")
    print error >(into "/error")
    written = 1
}

/^#/ { key = ""; show_shell(""); next }

/^case: / {
    if (n_cases && !("exit" in given)) refuse("case " name_read " has no \"exit N:\"")
    key = "case"
    name_read = $2
    if (NF != 2) refuse("a case has one name")
    begin_case()
    next
}

/^(common|setup|run):( |$)/ {
    key = $1
    sub(/:$/, "", key)
    if (key in given) refuse("a second \"" key ":\"")
    if ("exit" in given) refuse("\"" key ":\" after \"exit N:\"")
    if (key == "common" && n_cases) refuse("\"common:\" stands before the first case")
    given[key] = 1
    lines[key] = ""
    value = $0
    sub(/^[a-z]*: */, "", value)
    if (value != "") add_line(value)
    else show_shell("")
    next
}

/^exit [0-9]+: / {
    if (!n_cases || "exit" in given) refuse("an \"exit N:\" that belongs to no case")
    given["exit"] = 1
    key = ""
    status = $2 + 0
    error = $0
    sub(/^[^:]*: */, "", error)
    if (status == 0) refuse("bad input ends with a status above 0")
    if (error !~ /[^. ]/) refuse("\"exit N:\" needs what the error says")
    show_shell(")")
    if (mode == "unpack" && name_read == name) write_case()
    next
}

/^    / && key ~ /^(common|setup|run)$/ { add_line(substr($0, 5)); next }

/^ *$/ {
    if (key ~ /^(common|setup|run)$/) add_line("")
    else show_shell("")
    next
}

{ refuse("neither a key, nor a line of shell four spaces below one") }

END {
    if (refused) exit 2
    if (!n_cases) refuse("holds no case")
    if (!("exit" in given)) refuse("case " name_read " has no \"exit N:\"")
    if (mode == "unpack" && !written) refuse("no case " name)
}
