/* chapter.c - the table of chapters, made from the files in this directory; see accumulate_internal.h. */
#include "accumulate/accumulate_internal.h"

#include "base/registry.h"

#define X(name) extern const exf_chapter exf_chapter_##name;
#include "gen/chapter.inc"
#undef X

static const exf_chapter *const chapters[] = {
#define X(name) &exf_chapter_##name,
#include "gen/chapter.inc"
#undef X
};

const exf_chapter *exf_chapter_after(int place)
{
    const exf_chapter *next = NULL;
    for (size_t i = 0; i < sizeof chapters / sizeof *chapters; i++)
        if (chapters[i]->place > place && (!next || chapters[i]->place < next->place)) next = chapters[i];
    return next;
}
