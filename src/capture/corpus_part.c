/* corpus_part.c - cuts a corpus to one of its shards; see corpus.h. */
#include "base/mem.h"
#include "capture/corpus_internal.h"

#include <stdio.h>
#include <string.h>

/* Drops all sequences but [first, end), and moves their ids to the front. */
static void keep(exf_corpus *c, size_t first, size_t end)
{
    size_t row = c->sequence[first].offset, rows = 0;
    c->n_sequences = end - first;
    c->max_tokens = 0;
    memmove(c->sequence, c->sequence + first, c->n_sequences * sizeof *c->sequence);
    for (size_t i = 0; i < c->n_sequences; i++) {
        exf_sequence *s = &c->sequence[i];
        s->offset -= row;
        rows += (size_t)s->n_tokens;
        if (s->n_tokens > c->max_tokens) c->max_tokens = s->n_tokens;
    }
    if (c->ids) memmove(c->ids, c->ids + row, rows * sizeof *c->ids);
    c->n_tokens = rows;
}

/* Counts what the domains keep; all stay, so that the shards' lists name the same. */
static void count(exf_corpus *c)
{
    for (size_t i = 0; i < c->n_domains; i++) c->domains[i].sequences_kept = c->domains[i].tokens_kept = 0;
    for (size_t i = 0; c->n_domains && i < c->n_sequences; i++) {
        exf_domain *d = &c->domains[c->sequence[i].domain];
        d->sequences_kept++;
        d->tokens_kept += (uint64_t)c->sequence[i].n_tokens;
    }
}

exf_code exf_corpus_take_shard(exf_corpus *c, size_t first, size_t end, int index, int of, exf_err *err)
{
    snprintf(c->shard, sizeof c->shard, "%d/%d of %s", index, of, c->tokens_digest);
    keep(c, first, end);
    count(c);
    return c->ids ? exf_corpus_hash_tokens(c, err) : EXF_OK; /* a plan's stand-in has no tokens */
}
