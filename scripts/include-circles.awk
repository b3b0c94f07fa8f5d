# include-circles.awk - print every circle of modules that include each other.
# usage: awk -f include-circles.awk LIST       (lines of LIST: FILE INCLUDED, as two paths)
#
# A module is a header with its .c and .cu files: rows.h, rows_cpu.c, rows_cuda.cu.  Files
# that share a private header, <module>_internal.h or <module>_inside.h, are one module.
# Exit status 1 if a circle was printed.

function module(path) {
    sub(/\.(c|h|cu|cuh)$/, "", path)
    sub(/_(cpu|cuda)$/, "", path)
    sub(/_(internal|inside)$/, "", path)
    return path
}

function is_private(path) { return path ~ /_(internal|inside)\.(h|cuh)$/ }
function room(path) { sub(/\/[^\/]*$/, "", path); return path }

# Strongly connected components (Tarjan).
function visit(m,   i, to, last, members) {
    index_of[m] = low[m] = ++clock
    stack[++depth] = m
    on_stack[m] = 1
    for (i = 1; i <= n_edges[m]; i++) {
        to = edge[m, i]
        if (!(to in index_of)) visit(to)
        if (on_stack[to] && low[to] < low[m]) low[m] = low[to]
    }
    if (low[m] != index_of[m]) return
    members = 0
    do {
        last = stack[depth--]
        on_stack[last] = 0
        component[last] = m
        members++
    } while (last != m)
    if (members > 1) report(m, members)
}

# The shortest way from m back to m, breadth first within the component.
function report(m, members,   head, tail, queue, came, at, i, to, text, last) {
    queue[head = tail = 1] = m
    while (head <= tail) {
        at = queue[head++]
        for (i = 1; i <= n_edges[at]; i++) {
            to = edge[at, i]
            if (component[to] != m) continue
            if (to == m) {
                text = m
                for (last = m; at != m; at = came[at]) {
                    text = at " (" because[at, last] ")\n    -> " text
                    last = at
                }
                print "circle among " members " modules: " m " (" because[m, last] ")\n    -> " text
                bad = 1
                return
            }
            if (to in came) continue
            came[to] = at
            queue[++tail] = to
        }
    }
}

{
    file[NR] = $1; included[NR] = $2
    if (is_private($2) && room($1) == room($2) && !($1 in part_of)) part_of[$1] = module($2)
}

END {
    for (k = 1; k <= NR; k++) {
        from = file[k] in part_of ? part_of[file[k]] : module(file[k])
        to = included[k] in part_of ? part_of[included[k]] : module(included[k])
        if (from == to || (from, to) in seen) continue
        seen[from, to] = 1
        edge[from, ++n_edges[from]] = to
        because[from, to] = file[k]
        if (!(from in known)) { known[from] = 1; order[++n_modules] = from }
    }
    for (k = 1; k <= n_modules; k++) if (!(order[k] in index_of)) visit(order[k])
    exit bad
}
