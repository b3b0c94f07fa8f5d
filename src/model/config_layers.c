/* config_layers.c - fields of config.json that are a list with an element for each layer; see config.h. */
#include "model/config.h"

#include "base/text.h"

#include <string.h>

exf_code exf_config_layer_list(const exf_config *c, const char *field, int n_layers, int may_go_on, const exf_json **list,
                               exf_err *err)
{
    exf_code rc = exf_config_find(c, field, list, err);
    if (rc != EXF_OK || !*list) return rc;
    if (exf_json_type(*list) != EXF_JSON_ARRAY)
        return exf_fail(err, EXF_MODEL, "%s: \"%s\" is %s, expected an array", c->path, field, exf_json_type_name(*list));
    size_t n = exf_json_size(*list);
    if (n < (size_t)n_layers || (n > (size_t)n_layers && !may_go_on))
        return exf_fail(err, EXF_MODEL, "%s: \"%s\" has %zu elements, \"num_hidden_layers\" is %d", c->path, field, n, n_layers);
    return EXF_OK;
}

exf_code exf_config_layer_word(const exf_config *c, const char *field, const exf_json *list, int layer, const char *const *words,
                               int *which, exf_err *err)
{
    const exf_json *element = exf_json_at(list, (size_t)layer);
    const char *word = exf_json_string(element, NULL);
    exf_text known = {0};
    exf_code rc;
    for (*which = 0; word && words[*which]; ++*which)
        if (strcmp(word, words[*which]) == 0) return EXF_OK;
    for (int i = 0; words[i]; i++) exf_text_appendf(&known, "%s%s", i == 0 ? "" : words[i + 1] ? ", " : " or ", words[i]);
    EXF_TRY(exf_text_end(&known, err));
    rc = exf_fail(err, EXF_MODEL, "%s: \"%s\"[%d] is %s, expected %s", c->path, field, layer,
                  word ? word : exf_json_type_name(element), known.s);
out:
    exf_text_free(&known);
    return rc;
}
