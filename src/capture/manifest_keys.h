/* manifest_keys.h - lists the keys of a manifest's source and of its origin, and the formats of a
 * source, with their defaults and meanings: what the parser knows and exfold-manifest(5) prints.
 *
 * X(name, fallback, about); fallback is NULL where the key is required. */
#ifndef EXF_CAPTURE_MANIFEST_KEYS_H
#define EXF_CAPTURE_MANIFEST_KEYS_H

#define EXF_MANIFEST_SOURCE_KEYS(X)                                                                                      \
    X("path", NULL, "the file, relative to the manifest's")                                                              \
    X("format", NULL, "`jsonl`, `text` or `tokens`, see below")                                                          \
    X("field", "`text`", "jsonl: the member that holds the text")                                                        \
    X("where", "every line", "jsonl: only lines whose members equal these strings, as `{domain: c}`")                    \
    X("tensor", "the file's only one", "tokens: the tensor's name")                                                      \
    X("domain", "`source-<n>`", "the name under which reports show it; sources may share one")                           \
    X("sequences", "its share of the run's", "how many to take; more than the source has is an error")                   \
    X("sha256", "`unpinned`", "of the file, 64 hexadecimal digits; a difference is an error, a missing one is said")     \
    X("origin", "none", "jsonl: the dataset rows the file is made of; checked, otherwise unused by the programs")

#define EXF_MANIFEST_FORMATS(X) /* in the order of exf_source_format */                                                  \
    X("jsonl", NULL, "a document per line, a JSON object")                                                               \
    X("text", NULL, "the file is one document")                                                                          \
    X("tokens", NULL, "an integer tensor [n, len] of a safetensors file, a row a sequence; no tokenizer is needed")

#define EXF_MANIFEST_ORIGIN_KEYS(X)                                                                                      \
    X("dataset", NULL, "its name on the Hugging Face hub; `./NAME`: beside the manifest")                                \
    X("revision", "`unpinned`", "a commit of the dataset; unpinned: its newest")                                         \
    X("subset", "the only one", "its configuration")                                                                     \
    X("split", NULL, "such as `train`")                                                                                  \
    X("where", "every row", "only rows whose columns hold this value, or one of these, as `{source: [a, b]}`")           \
    X("skip", "0", "then that many rows are left out")                                                                   \
    X("take", "all", "and that many taken")                                                                              \
    X("messages", "`messages`", "the column of the conversation, rendered with the model's chat template; or")           \
    X("text", "none", "the column of plain text")
#endif
