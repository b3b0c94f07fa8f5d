/* validation_text.c - how much of the text that a validation runs is text that its tables were calibrated on; see validation.h.
 *
 * Tables know their sequences by digest (artifact/tables.h).  A sequence of the validation that was cut as the calibration cut
 * is looked up as it is.  Cut longer, it is looked up in pieces of the calibration's length; cut shorter, together with the
 * sequences that go on with its document.  So a word more at the beginning hides all that follows it; but tables have sketches of
 * the calibration's documents too, by which near copies of them are known. */
#include "validate/validation.h"

#include "artifact/data.h"
#include "base/log.h"
#include "base/mem.h"

#include <string.h>

typedef struct {
    const exf_tables *tables;
    const exf_corpus *corpus;
    size_t cut; /* most tokens of a sequence of the calibration */
    unsigned char *shared; /* [n_sequences] 1: text of the calibration */
} search;

/* Looks up the tokens from `first` on, in pieces of the calibration's length; of each that the tables know, marks the sequences
 * between i and end that have tokens in it. */
static exf_code look_up(search *s, size_t i, size_t end, exf_err *err)
{
    const exf_sequence *at = s->corpus->sequence;
    size_t first = at[i].offset, last = at[end - 1].offset + (size_t)at[end - 1].n_tokens, n;
    exf_code rc = EXF_OK;
    for (; rc == EXF_OK && first < last; first += n) {
        unsigned char sha256[32];
        n = last - first < s->cut ? last - first : s->cut;
        EXF_TRY(exf_sequence_sha256(sha256, s->corpus->ids + first, (int32_t)n, err));
        if (!exf_tables_has_sequence(s->tables, sha256)) continue;
        for (size_t k = i; k < end; k++)
            s->shared[k] |= at[k].offset < first + n && first < at[k].offset + (size_t)at[k].n_tokens;
    }
out:
    return rc;
}

/* Counts the sequences that no digest told whose document is in a group of near copies with one of the calibration. */
static exf_code count_near_copies(size_t *out, const search *s, exf_err *err)
{
    const exf_sketch_set *known = &s->tables->sketches;
    const exf_corpus *c = s->corpus;
    size_t n = known->n + c->n_sketches, *group = NULL;
    exf_sketch *all = NULL;
    unsigned char packed[EXF_SKETCH_BYTES];
    exf_code rc = EXF_OK;
    if (known->n == 0) return EXF_OK;
    EXF_TRY(exf_mem_new(&all, n, sizeof *all, "near copies", err));
    EXF_TRY(exf_mem_new(&group, n, sizeof *group, "near copies", err));
    for (size_t i = 0; i < known->n; i++) exf_sketch_unpack(&all[i], known->sketch[i]);
    for (size_t i = 0; i < c->n_sketches; i++) { /* the bytes of them that the tables have, so that both sides are compared alike */
        exf_sketch_pack(packed, &c->sketch[i]);
        exf_sketch_unpack(&all[known->n + i], packed);
        all[known->n + i].empty = c->sketch[i].empty;
    }
    EXF_TRY(exf_near_copies_find(group, all, n, err));
    for (size_t i = 0; i < c->n_sequences; i++)
        *out += !s->shared[i] && group[known->n + c->sequence[i].sketch] < known->n;
out:
    exf_mem_free(all);
    exf_mem_free(group);
    return rc;
}

exf_code exf_calibration_text_find(exf_calibration_text *out, const exf_tables *t, const exf_corpus *c, int64_t max_tokens,
                                   exf_err *err)
{
    const char *text = exf_provenance_get(&t->provenance, "data.max_tokens"); /* files that no corpus was cut for have none */
    int64_t cut;
    search s = {.tables = t, .corpus = c};
    exf_code rc;
    *out = (exf_calibration_text){.known = t->sequence_digest && c->ids && text && exf_parse_i64(text, &cut) && cut > 0,
                                  .of = c->n_sequences};
    if (!out->known) return EXF_OK;
    s.cut = (size_t)cut;
    EXF_TRY(exf_mem_new(&s.shared, c->n_sequences, 1, "sequences", err));
    for (size_t i = 0; i < c->n_sequences; i++) EXF_TRY(look_up(&s, i, i + 1, err));
    for (size_t i = 0, end; max_tokens < cut && i < c->n_sequences; i = end) {
        for (end = i + 1; end < c->n_sequences; end++) { /* those that go on with i's document: each but the last of full length */
            const exf_sequence *now = &c->sequence[end], *before = now - 1;
            if (now->source != before->source || now->row != before->row + 1 || before->n_tokens != max_tokens) break;
        }
        EXF_TRY(look_up(&s, i, end, err));
    }
    for (size_t i = 0; i < c->n_sequences; i++) out->sequences += s.shared[i];
    EXF_TRY(count_near_copies(&out->near, &s, err));
    out->at_least = max_tokens != cut && out->sequences < out->of;
out:
    exf_mem_free(s.shared);
    return rc;
}

exf_code exf_calibration_text_tell(const exf_calibration_text *x, const char *tables, exf_provenance *facts, exf_err *err)
{
    exf_text words = {0};
    exf_code rc;
    if (!x->known) {
        exf_log_info("%s: does not say on which sequences it was calibrated, so that this text is not compared with them", tables);
        return EXF_OK;
    }
    EXF_TRY(exf_provenance_add(facts, err, "validate.calibration_sequences", "%zu", x->sequences));
    EXF_TRY(exf_provenance_add(facts, err, "validate.calibration_near_copies", "%zu", x->near));
    if (!x->sequences && !x->near) goto out;
    if (x->sequences)
        exf_text_appendf(&words, "%s%zu of %zu sequences are text that the tables were calibrated on",
                         x->at_least ? "at least " : "", x->sequences, x->of);
    if (x->near && x->sequences)
        exf_text_appendf(&words, ", and %zu others are of its documents or of near copies of them", x->near);
    else if (x->near)
        exf_text_appendf(&words, "%zu of %zu sequences are of documents that the tables were calibrated on, or of near copies of "
                         "them", x->near, x->of);
    exf_text_appendf(&words, ": their figures flatter the tables");
    EXF_TRY(exf_text_end(&words, err));
    exf_log_warn("%s: %s; validate on other text", tables, words.s);
    rc = exf_provenance_add(facts, err, "validate.calibration_text", "%s", words.s);
out:
    exf_text_free(&words);
    return rc;
}
