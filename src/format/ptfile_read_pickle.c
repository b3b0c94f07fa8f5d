/* ptfile_read_pickle.c - the pickle of a .pt file as objects: a machine with a stack and a memo that knows the opcodes of
 * plain values, and of three callables only what they would have made.  Nothing is called. */
#include "base/mem.h"
#include "base/text.h"
#include "format/ptfile_read_internal.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* The classes that a file may name: two callables, then torch's storages. */
enum { REBUILD, ORDERED, FIRST_STORAGE };
static const struct {
    const char *name;
    exf_dtype dtype;
} classes[] = {
    {"torch._utils _rebuild_tensor_v2", EXF_DT_BOOL}, {"collections OrderedDict", EXF_DT_BOOL},
    {"torch FloatStorage", EXF_DT_F32},               {"torch DoubleStorage", EXF_DT_F64},
    {"torch HalfStorage", EXF_DT_F16},                {"torch BFloat16Storage", EXF_DT_BF16},
    {"torch LongStorage", EXF_DT_I64},                {"torch IntStorage", EXF_DT_I32},
    {"torch ShortStorage", EXF_DT_I16},               {"torch CharStorage", EXF_DT_I8},
    {"torch ByteStorage", EXF_DT_U8},                 {"torch BoolStorage", EXF_DT_BOOL},
};
enum { N_CLASSES = sizeof classes / sizeof *classes };

typedef struct {
    const exf_pt_zip *zip;
    const unsigned char *p; /* the pickle */
    size_t n, at, op;       /* op: where the opcode stands */
    exf_pt_objects *objects;
    uint32_t *stack, *memo; /* memo: object + 1; 0: none */
    size_t depth, cap_stack, n_memo;
    exf_err *err;
} machine;

static exf_code bad(const machine *m, const char *format, ...) EXF_PRINTF(2, 3);
static exf_code bad(const machine *m, const char *format, ...)
{
    char what[200];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return exf_fail(m->err, EXF_FORMAT, "%s: data.pkl, byte %zu, opcode 0x%02x: %s", exf_file_path(m->zip->file), m->op,
                    m->op < m->n ? m->p[m->op] : 0, what);
}

/* ---- bytes --------------------------------------------------------------------------- */

static exf_code take(machine *m, size_t n, const unsigned char **out)
{
    if (n > m->n - m->at) return bad(m, "the pickle ends within it");
    *out = m->p + m->at;
    m->at += n;
    return EXF_OK;
}

static exf_code take_number(machine *m, int n, uint64_t *out)
{
    const unsigned char *b = NULL;
    exf_code rc = take(m, (size_t)n, &b);
    *out = 0;
    for (int i = n; rc == EXF_OK && i-- > 0;) *out = *out << 8 | b[i];
    return rc;
}

static exf_code take_line(machine *m, const char **out, size_t *len)
{
    const unsigned char *end = memchr(m->p + m->at, '\n', m->n - m->at);
    if (!end) return bad(m, "the pickle ends within it");
    *out = (const char *)m->p + m->at;
    *len = (size_t)(end - (m->p + m->at));
    m->at += *len + 1;
    return EXF_OK;
}

/* ---- the stack ------------------------------------------------------------------------- */

static exf_pt_object *object(const machine *m, uint32_t i)
{
    return &m->objects->at[i];
}

static exf_code push_index(machine *m, uint32_t i)
{
    exf_code rc = exf_mem_grow(&m->stack, &m->cap_stack, m->depth + 1, sizeof *m->stack, "pickle", m->err);
    if (rc == EXF_OK) m->stack[m->depth++] = i;
    return rc;
}

static exf_code push(machine *m, exf_pt_object x)
{
    exf_pt_objects *o = m->objects;
    if (o->n >= EXF_PT_MAX_OBJECTS) return bad(m, "more than %d objects", EXF_PT_MAX_OBJECTS);
    exf_code rc = exf_mem_grow(&o->at, &o->cap, o->n + 1, sizeof *o->at, "pickle", m->err);
    if (rc != EXF_OK) return rc;
    o->at[o->n] = x;
    return push_index(m, (uint32_t)o->n++);
}

/* Takes the top object of that kind off the stack; kind -1: any but a mark. */
static exf_code pop(machine *m, int kind, uint32_t *out)
{
    if (m->depth == 0) return bad(m, "the stack is empty");
    *out = m->stack[m->depth - 1];
    int is = object(m, *out)->kind;
    if (kind < 0 ? is == EXF_PT_MARK : is != kind) return bad(m, "what is on the stack is of another kind than it takes");
    m->depth--;
    return EXF_OK;
}

/* Finds the stack index at which the objects above the last mark begin. */
static exf_code find_mark(const machine *m, size_t *first)
{
    for (*first = m->depth; *first > 0; --*first)
        if (object(m, m->stack[*first - 1])->kind == EXF_PT_MARK) return EXF_OK;
    return bad(m, "there is no mark on the stack");
}

static exf_code add_child(machine *m, uint32_t parent, uint32_t child)
{
    exf_pt_object *p = object(m, parent);
    if (p->n >= EXF_PT_MAX_OBJECTS) return bad(m, "more than %d items", EXF_PT_MAX_OBJECTS);
    exf_code rc = exf_mem_grow(&p->child, &p->cap, p->n + 1, sizeof *p->child, "pickle", m->err);
    if (rc == EXF_OK) p->child[p->n++] = child;
    return rc;
}

/* Puts the objects above the mark into the one below it, and the mark away. */
static exf_code add_items(machine *m, int kind)
{
    size_t first;
    exf_code rc;
    EXF_TRY(find_mark(m, &first));
    if (first < 2 || object(m, m->stack[first - 2])->kind != kind || (kind == EXF_PT_DICT && (m->depth - first) % 2))
        return bad(m, "there is nothing that takes its items");
    for (size_t i = first; i < m->depth; i++) EXF_TRY(add_child(m, m->stack[first - 2], m->stack[i]));
    m->depth = first - 1;
out:
    return rc;
}

static exf_code add_last(machine *m, int kind, int n)
{
    uint32_t item[2] = {0};
    exf_code rc = EXF_OK;
    for (int i = n; i-- > 0;) EXF_TRY(pop(m, -1, &item[i]));
    if (m->depth == 0 || object(m, m->stack[m->depth - 1])->kind != kind) return bad(m, "there is nothing that takes its items");
    for (int i = 0; i < n; i++) EXF_TRY(add_child(m, m->stack[m->depth - 1], item[i]));
out:
    return rc;
}

/* Makes a tuple of the objects from `first` on, and takes away `marks` marks below them. */
static exf_code make_tuple(machine *m, size_t first, size_t marks)
{
    exf_code rc;
    size_t last = m->depth;
    EXF_TRY(push(m, (exf_pt_object){.kind = EXF_PT_LIST}));
    uint32_t tuple = m->stack[last];
    for (size_t i = first; i < last; i++) {
        if (object(m, m->stack[i])->kind == EXF_PT_MARK) return bad(m, "there is a mark among its items");
        EXF_TRY(add_child(m, tuple, m->stack[i]));
    }
    m->stack[first - marks] = tuple;
    m->depth = first - marks + 1;
out:
    return rc;
}

static exf_code make_marked_tuple(machine *m)
{
    size_t first;
    exf_code rc = find_mark(m, &first);
    return rc == EXF_OK ? make_tuple(m, first, 1) : rc;
}

/* ---- memo -------------------------------------------------------------------------------- */

static exf_code remember(machine *m, uint64_t place)
{
    size_t cap = m->n_memo;
    if (m->depth == 0) return bad(m, "the stack is empty");
    if (place >= EXF_PT_MAX_OBJECTS) return bad(m, "place %" PRIu64 " of the memo, at most %d", place, EXF_PT_MAX_OBJECTS - 1);
    if (place >= cap) {
        exf_code rc = exf_mem_grow(&m->memo, &cap, (size_t)place + 1, sizeof *m->memo, "pickle", m->err);
        if (rc != EXF_OK) return rc;
        memset(m->memo + m->n_memo, 0, (cap - m->n_memo) * sizeof *m->memo);
        m->n_memo = cap;
    }
    m->memo[place] = m->stack[m->depth - 1] + 1;
    return EXF_OK;
}

static exf_code recall(machine *m, uint64_t place)
{
    if (place >= m->n_memo || !m->memo[place]) return bad(m, "place %" PRIu64 " of the memo is empty", place);
    return push_index(m, m->memo[place] - 1);
}

/* ---- classes and tensors -------------------------------------------------------------------- */

static exf_code find_class(machine *m)
{
    const char *module = "", *name = "";
    size_t n_module = 0, n_name = 0;
    exf_code rc;
    EXF_TRY(take_line(m, &module, &n_module));
    EXF_TRY(take_line(m, &name, &n_name));
    for (int i = 0; i < N_CLASSES; i++) {
        const char *blank = strchr(classes[i].name, ' ');
        if ((size_t)(blank - classes[i].name) == n_module && memcmp(classes[i].name, module, n_module) == 0 &&
            strlen(blank + 1) == n_name && memcmp(blank + 1, name, n_name) == 0)
            return push(m, (exf_pt_object){.kind = EXF_PT_GLOBAL, .integer = i});
    }
    rc = bad(m, "it names %.*s.%.*s; only tensors and plain values are read, nothing is run", (int)(n_module < 60 ? n_module : 60),
             module, (int)(n_name < 60 ? n_name : 60), name);
out:
    return rc;
}

/* ("storage", torch.<class>, key, device, elements) */
static exf_code find_storage(machine *m)
{
    uint32_t tuple = 0;
    exf_code rc;
    EXF_TRY(pop(m, EXF_PT_LIST, &tuple));
    const exf_pt_object *t = object(m, tuple);
    if (t->n != 5) return bad(m, "a storage has %zu parts, expected 5", t->n);
    const exf_pt_object *word = object(m, t->child[0]), *class = object(m, t->child[1]), *key = object(m, t->child[2]),
                        *count = object(m, t->child[4]);
    char name[48];
    if (word->kind != EXF_PT_TEXT || word->len != 7 || memcmp(word->text, "storage", 7) != 0 || class->kind != EXF_PT_GLOBAL ||
        class->integer < FIRST_STORAGE || key->kind != EXF_PT_TEXT || key->len > 20 || count->kind != EXF_PT_INT)
        return bad(m, "what it names is no storage of torch");
    int n = snprintf(name, sizeof name, "data/%.*s", (int)key->len, key->text);
    const exf_pt_zip_record *from = exf_pt_zip_find(m->zip, name, (size_t)n);
    if (!from) return bad(m, "the archive has no record %s", name);
    exf_pt_object s = {.kind = EXF_PT_STORAGE, .integer = count->integer, .from = from};
    s.view.dtype = classes[class->integer].dtype;
    uint64_t bytes = exf_dtype_bits(s.view.dtype) / 8;
    if (s.integer < 0 || from->size % bytes || from->size / bytes != (uint64_t)s.integer)
        return bad(m, "record %s has %" PRIu64 " bytes, the pickle says %" PRId64 " elements of %" PRIu64, name, from->size,
                   s.integer,
                   bytes);
    rc = push(m, s);
out:
    return rc;
}

/* The shape, whose strides must be those of a dense row-major array. */
static exf_code take_shape(const machine *m, exf_pt_object *t, const exf_pt_object *shape, const exf_pt_object *strides)
{
    int64_t dense = 1;
    if (shape->kind != EXF_PT_LIST || strides->kind != EXF_PT_LIST || shape->n != strides->n || shape->n > EXF_MAX_RANK)
        return bad(m, "a tensor's shape and strides are not tuples of the same length up to %d", EXF_MAX_RANK);
    t->view.rank = (int)shape->n;
    for (size_t i = shape->n; i-- > 0;) {
        const exf_pt_object *n = object(m, shape->child[i]), *stride = object(m, strides->child[i]);
        if (n->kind != EXF_PT_INT || stride->kind != EXF_PT_INT || n->integer < 0)
            return bad(m, "a tensor's shape and strides are not integers from 0");
        if (n->integer > 1 && stride->integer != dense)
            return bad(m, "a tensor is not dense and row-major: save it with .contiguous()");
        if (n->integer && dense > INT64_MAX / 16 / n->integer) return bad(m, "a tensor's shape overflows 64 bits");
        t->view.shape[i] = n->integer;
        dense *= n->integer ? n->integer : 1;
    }
    t->integer = exf_tensor_count(&t->view);
    return EXF_OK;
}

/* _rebuild_tensor_v2(storage, offset, shape, strides, requires_grad, hooks[, metadata]) */
static exf_code make_tensor(machine *m, const exf_pt_object *a)
{
    if (a->n < 6 || a->n > 7) return bad(m, "a tensor is made of %zu parts, expected 6", a->n);
    const exf_pt_object *s = object(m, a->child[0]), *offset = object(m, a->child[1]);
    if (s->kind != EXF_PT_STORAGE || offset->kind != EXF_PT_INT) return bad(m, "a tensor is made of no storage");
    exf_pt_object t = {.kind = EXF_PT_TENSOR, .from = s->from, .view = {.dtype = s->view.dtype}};
    exf_code rc = take_shape(m, &t, object(m, a->child[2]), object(m, a->child[3]));
    if (rc != EXF_OK) return rc;
    if (offset->integer < 0 || t.integer > s->integer || offset->integer > s->integer - t.integer)
        return bad(m, "a tensor of %" PRId64 " elements from %" PRId64 " on reaches beyond its storage of %" PRId64, t.integer,
                   offset->integer, s->integer);
    t.begin = (uint64_t)offset->integer * (exf_dtype_bits(s->view.dtype) / 8);
    return push(m, t);
}

static exf_code reduce(machine *m)
{
    uint32_t arguments = 0, callable = 0;
    exf_code rc;
    EXF_TRY(pop(m, EXF_PT_LIST, &arguments));
    EXF_TRY(pop(m, EXF_PT_GLOBAL, &callable));
    const exf_pt_object a = *object(m, arguments);
    int64_t which = object(m, callable)->integer;
    if (which == REBUILD) return make_tensor(m, &a);
    if (which != ORDERED || a.n) return bad(m, "%s with %zu arguments is not read", classes[which].name, a.n);
    rc = push(m, (exf_pt_object){.kind = EXF_PT_DICT});
out:
    return rc;
}

/* ---- opcodes --------------------------------------------------------------------------------- */

static exf_code push_int(machine *m, int bytes, int is_signed)
{
    uint64_t v = 0;
    exf_code rc = take_number(m, bytes, &v);
    if (rc != EXF_OK) return rc;
    int shift = 64 - 8 * bytes;
    int64_t value = bytes == 0 ? 0 : is_signed ? (int64_t)(v << shift) >> shift : (int64_t)v;
    return push(m, (exf_pt_object){.kind = EXF_PT_INT, .integer = value});
}

static exf_code push_long(machine *m)
{
    uint64_t bytes = 0;
    exf_code rc = take_number(m, 1, &bytes);
    if (rc == EXF_OK && bytes > 8) return bad(m, "an integer of %" PRIu64 " bytes, at most 8", bytes);
    return rc == EXF_OK ? push_int(m, (int)bytes, 1) : rc;
}

static exf_code push_real(machine *m)
{
    const unsigned char *b = NULL;
    uint64_t u = 0;
    exf_pt_object x = {.kind = EXF_PT_REAL};
    exf_code rc = take(m, 8, &b);
    if (rc != EXF_OK) return rc;
    for (int i = 0; i < 8; i++) u = u << 8 | b[i];
    memcpy(&x.real, &u, sizeof u);
    return push(m, x);
}

static exf_code push_text(machine *m)
{
    uint64_t n = 0;
    const unsigned char *b = NULL;
    exf_code rc;
    EXF_TRY(take_number(m, 4, &n));
    EXF_TRY(take(m, (size_t)n, &b));
    if (memchr(b, 0, (size_t)n) || exf_utf8_valid((const char *)b, (size_t)n) != (size_t)n)
        return bad(m, "text that is not UTF-8, or holds a NUL");
    rc = push(m, (exf_pt_object){.kind = EXF_PT_TEXT, .text = (const char *)b, .len = (size_t)n});
out:
    return rc;
}

static exf_code check_protocol(machine *m)
{
    uint64_t version = 0;
    exf_code rc = take_number(m, 1, &version);
    if (rc == EXF_OK && version != 2) return bad(m, "protocol %" PRIu64 ", torch.save() writes 2", version);
    return rc;
}

static exf_code with_place(machine *m, int bytes, exf_code (*act)(machine *, uint64_t))
{
    uint64_t place = 0;
    exf_code rc = take_number(m, bytes, &place);
    return rc == EXF_OK ? act(m, place) : rc;
}

static exf_code short_tuple(machine *m, size_t n)
{
    return m->depth < n ? bad(m, "the stack is empty") : make_tuple(m, m->depth - n, 0);
}

static exf_code step(machine *m, int op)
{
    switch (op) {
    case 0x80: return check_protocol(m);
    case '(': return push(m, (exf_pt_object){.kind = EXF_PT_MARK});
    case 'N': return push(m, (exf_pt_object){.kind = EXF_PT_NONE});
    case 0x88: return push(m, (exf_pt_object){.kind = EXF_PT_BOOL, .integer = 1});
    case 0x89: return push(m, (exf_pt_object){.kind = EXF_PT_BOOL});
    case 'J': return push_int(m, 4, 1);
    case 'K': return push_int(m, 1, 0);
    case 'M': return push_int(m, 2, 0);
    case 0x8a: return push_long(m);
    case 'G': return push_real(m);
    case 'X': return push_text(m);
    case ')': return push(m, (exf_pt_object){.kind = EXF_PT_LIST});
    case ']': return push(m, (exf_pt_object){.kind = EXF_PT_LIST});
    case '}': return push(m, (exf_pt_object){.kind = EXF_PT_DICT});
    case 't': return make_marked_tuple(m);
    case 0x85: return short_tuple(m, 1);
    case 0x86: return short_tuple(m, 2);
    case 0x87: return short_tuple(m, 3);
    case 'a': return add_last(m, EXF_PT_LIST, 1);
    case 'e': return add_items(m, EXF_PT_LIST);
    case 's': return add_last(m, EXF_PT_DICT, 2);
    case 'u': return add_items(m, EXF_PT_DICT);
    case 'q': return with_place(m, 1, remember);
    case 'r': return with_place(m, 4, remember);
    case 'h': return with_place(m, 1, recall);
    case 'j': return with_place(m, 4, recall);
    case 'c': return find_class(m);
    case 'Q': return find_storage(m);
    case 'R': return reduce(m);
    default: return bad(m, "it is none of those that tensors and plain values need; nothing is run");
    }
}

exf_code exf_pt_unpickle(exf_pt_objects *out, uint32_t *root, const exf_pt_zip *z, const unsigned char *pickle, size_t n,
                         exf_err *err)
{
    machine m = {.zip = z, .p = pickle, .n = n, .objects = out, .err = err};
    exf_code rc = EXF_OK;
    for (;;) {
        m.op = m.at;
        if (m.at >= m.n) {
            rc = bad(&m, "the pickle ends without its last opcode");
            break;
        }
        int op = pickle[m.at++];
        if (op == '.') {
            rc = pop(&m, -1, root);
            break;
        }
        rc = step(&m, op);
        if (rc != EXF_OK) break;
    }
    exf_mem_free(m.stack);
    exf_mem_free(m.memo);
    return rc;
}

void exf_pt_objects_free(exf_pt_objects *o)
{
    for (size_t i = 0; i < o->n; i++) exf_mem_free(o->at[i].child);
    exf_mem_free(o->at);
    *o = (exf_pt_objects){0};
}
