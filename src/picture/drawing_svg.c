/* drawing_svg.c - gives the ids of an SVG numbers of their own; see drawing_internal.h. */
#include "base/mem.h"
#include "picture/drawing_internal.h"

#include <stdlib.h>
#include <string.h>

enum { NAME_MOST = 24 };

/* "surface123" of id="surface123" or #surface123. */
typedef struct {
    char name[NAME_MOST];
    size_t number;
} id;

typedef struct {
    id *list;
    size_t n, room;
} ids;

/* The length of a name of letters, or letters and a dash, before a number; 0: none stands at s.  *len has
 * the whole length. */
static size_t name_at(const char *s, size_t *len)
{
    size_t word = strspn(s, "abcdefghijklmnopqrstuvwxyz-"), digits = strspn(s + word, "0123456789");
    *len = word + digits;
    int ends = s[*len] == '"' || s[*len] == ')';
    return digits && ends && *len < NAME_MOST ? word : 0;
}

static int begins_an_id(const char *text, const char *s)
{
    return s[-1] == '#' || (s - text >= 4 && memcmp(s - 4, "id=\"", 4) == 0);
}

static exf_code number_of(ids *all, const char *s, size_t len, size_t *number, exf_err *err)
{
    for (size_t i = all->n; i-- > 0;)
        if (strncmp(all->list[i].name, s, len) == 0 && !all->list[i].name[len]) {
            *number = all->list[i].number;
            return EXF_OK;
        }
    exf_code rc = exf_mem_grow(&all->list, &all->room, all->n + 1, sizeof *all->list, "ids of a picture", err);
    if (rc != EXF_OK) return rc;
    id *new = &all->list[all->n];
    memcpy(new->name, s, len);
    new->name[len] = '\0';
    *number = new->number = all->n++;
    return EXF_OK;
}

exf_code exf_svg_renumber(const exf_text *svg, exf_text *out, exf_err *err)
{
    ids all = {0};
    size_t from = 0, len, number;
    exf_code rc = EXF_OK;
    for (size_t at = 1; at < svg->len; at++) {
        const char *s = svg->s + at;
        if (!begins_an_id(svg->s, s)) continue;
        size_t word = name_at(s, &len);
        if (!word) continue;
        EXF_TRY(number_of(&all, s, len, &number, err));
        EXF_TRY(exf_text_add(out, svg->s + from, at + word - from, err));
        EXF_TRY(exf_text_addf(out, err, "%zu", number));
        from = at + len;
    }
    EXF_TRY(exf_text_add(out, svg->s + from, svg->len - from, err));
out:
    exf_mem_free(all.list);
    return rc;
}
