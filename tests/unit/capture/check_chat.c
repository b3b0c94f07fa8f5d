/* check_chat.c - capture/chat: templates that are recognised, and what conversations come to in each form.  The expected texts are
 * what Jinja makes of the same templates (scripts/render_chat.py). */
#include "tests/support/scratch_fixtures.h"

#include "capture/chat.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOOP "{% for message in messages %}"
#define LINE "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}"
#define PROMPT "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
#define UNSET "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}"
#define DEEPSEEK                                                                                                       \
    UNSET "{{ bos_token }}" LOOP "{% if message['role'] == 'user' %}{{ 'User: ' + message['content'] + '\\n\\n' }}"    \
          "{% elif message['role'] == 'assistant' %}{{ 'Assistant: ' + message['content'] + eos_token }}"              \
          "{% elif message['role'] == 'system' %}{{ message['content'] + '\\n\\n' }}{% endif %}{% endfor %}"           \
          "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"

static exf_err e;

static exf_chat_kind kind_of(const char *text)
{
    exf_chat_kind k = EXF_CHAT_NONE;
    ck_ok(exf_chat_recognise(&k, text, &e), e);
    return k;
}

START_TEST(plain_templates_are_recognised)
{
    static const char *const chatml[] = {
        LOOP LINE "{% endfor %}", LOOP LINE "{% endfor %}" PROMPT, UNSET LOOP LINE "{% endfor %}" PROMPT "\n",
        "{%- for message in messages -%}\n    {{- \"<|im_start|>\" + message.role + \"\\n\" + message[\"content\"] + "
        "\"<|im_end|>\\n\" -}}\n{%- endfor -%}\n"
        "{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n{%- endif %}",
        /* newlines as characters, which "\n" of a JSON file becomes */
        "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"};
    for (size_t i = 0; i < sizeof chatml / sizeof *chatml; i++)
        ck_assert_msg(kind_of(chatml[i]) == EXF_CHAT_CHATML, "not recognised: %s", chatml[i]);
    ck_assert_int_eq(kind_of(DEEPSEEK), EXF_CHAT_DEEPSEEK_V2);
}
END_TEST

/* What differs by a character may render differently. */
START_TEST(others_are_not)
{
    static const char *const others[] = {
        "", "{{ messages }}", LOOP LINE, LOOP LINE "{% endfor %}!", LOOP LINE " {% endfor %}", LOOP "\n\n" LINE "{% endfor %}",
        LOOP "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] | trim + '<|im_end|>' + '\\n'}}{% endfor %}",
        LOOP "{{'<|im_start|>' + message['role'] + ' \\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}",
        LOOP "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' }}\n{% endfor %}",
        "{% for message in messages[1:] %}" LINE "{% endfor %}", LOOP LINE "{% endfor %}{% if x %}y{% endif %}",
        "{{", "{% '", "{{ 'a"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        ck_assert_msg(kind_of(others[i]) == EXF_CHAT_NONE, "taken for another: %s", others[i]);
}
END_TEST

static exf_code render_field(exf_chat_kind kind, const char *json, const char *field, exf_text *out, exf_err *err)
{
    char bos[] = "<B>", eos[] = "<E>";
    exf_chat_form f = {.kind = kind, .bos = bos, .eos = eos};
    exf_json *j = NULL;
    exf_code rc;
    EXF_TRY(exf_json_parse(&j, json, strlen(json), "line", err));
    rc = exf_chat_render(&f, j, field, out, err);
out:
    exf_json_free(j);
    return rc;
}

static exf_code render(exf_chat_kind kind, const char *json, exf_text *out, exf_err *err)
{
    return render_field(kind, json, "messages", out, err);
}

static void gives(exf_chat_kind kind, const char *messages, const char *want)
{
    exf_text json = {0}, got = {0};
    exf_text_appendf(&json, "{\"messages\": [%s]}", messages);
    ck_ok(render(kind, json.s, &got, &e), e);
    ck_assert_str_eq(got.s, want);
    exf_text_free(&json);
    exf_text_free(&got);
}

#define SYSTEM "{\"role\": \"system\", \"content\": \"Be short.\"}"
#define USER "{\"role\": \"user\", \"content\": \"Hi\"}"
#define ANSWER "{\"content\": \"\\n\\nYes \", \"role\": \"assistant\", \"tool_calls\": [], \"reasoning_content\": null}"

START_TEST(conversations_in_each_form)
{
    gives(EXF_CHAT_CHATML, SYSTEM "," USER "," ANSWER,
          "<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n\n\nYes <|im_end|>\n");
    gives(EXF_CHAT_QWEN3, USER "," ANSWER "," USER "," ANSWER,
          "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n\n\nYes <|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
          "<|im_start|>assistant\n<think>\n\n</think>\n\nYes <|im_end|>\n");
    gives(EXF_CHAT_QWEN3, ANSWER, "<|im_start|>assistant\n\n\nYes <|im_end|>\n"); /* no user has asked */
    gives(EXF_CHAT_QWEN3, USER "," ANSWER "," ANSWER,
          "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n\n\nYes <|im_end|>\n"
          "<|im_start|>assistant\n<think>\n\n</think>\n\nYes <|im_end|>\n");
    gives(EXF_CHAT_QWEN3, USER "," SYSTEM, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>system\nBe short.<|im_end|>\n");
    gives(EXF_CHAT_DEEPSEEK_V2, SYSTEM "," USER "," ANSWER, "<B>Be short.\n\nUser: Hi\n\nAssistant: \n\nYes <E>");
}
END_TEST

/* The shapes that data sets have are the same conversation. */
START_TEST(shapes_of_conversations)
{
#define ASKED "<|im_start|>user\nHi\n2<|im_end|>\n<|im_start|>assistant\nYes<|im_end|>\n"
    static const struct { const char *json, *field; } shape[] = {
        {"{\"c\": [{\"from\": \"human\", \"value\": \"Hi\\n2\"}, {\"from\": \"gpt\", \"value\": \"Yes\"}]}", "c"},
        {"{\"p\": [{\"role\": \"user\", \"content\": \"Hi\\n2\"}], "
         "\"c\": [{\"role\": \"assistant\", \"content\": \"Yes\"}]}", "p+c"},
        {"{\"i\": \"Hi\", \"n\": \"2\", \"o\": \"Yes\"}", "i+n+o"},
        {"{\"i\": \"Hi\\n2\", \"n\": \"\", \"o\": \"Yes\"}", "i+n+o"},
        {"{\"i\": \"Hi\\n2\", \"n\": null, \"o\": \"Yes\"}", "i+n+o"},
        {"{\"i\": \"Hi\\n2\", \"o\": \"Yes\"}", "i+n+o"},
        {"{\"i\": \"Hi\\n2\", \"o\": \"Yes\"}", "i+o"},
    };
    exf_text got = {0};
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) {
        got.len = 0;
        ck_ok(render_field(EXF_CHAT_CHATML, shape[i].json, shape[i].field, &got, &e), e);
        ck_assert_msg(strcmp(got.s, ASKED) == 0, "shape %zu: %s", i, got.s);
    }
    got.len = 0;
    ck_fails(render_field(EXF_CHAT_CHATML, "{\"i\": \"Hi\"}", "i+o", &got, &e), EXF_MODEL, e, "\"o\" is missing");
    ck_fails(render_field(EXF_CHAT_CHATML, "{\"c\": [{\"from\": \"tool\", \"value\": \"1\"}]}", "c", &got, &e), EXF_MODEL, e,
             "message 1 \"tool\" human render_chat.py");
    ck_fails(render_field(EXF_CHAT_CHATML, "{\"c\": [{\"from\": \"gpt\"}]}", "c", &got, &e), EXF_MODEL, e,
             "message 1 \"value\" missing");
    exf_text_free(&got);
}
END_TEST

static void refused(exf_chat_kind kind, const char *json, const char *named)
{
    exf_text got = {0};
    ck_fails(render(kind, json, &got, &e), EXF_MODEL, e, named);
    exf_text_free(&got);
}

START_TEST(what_no_fixed_form_renders_is_refused)
{
    refused(EXF_CHAT_CHATML,
            "{\"messages\": []}", "\"messages\" is empty");
    refused(EXF_CHAT_CHATML,
            "{\"messages\": \"Hi\"}", "\"messages\"");
    refused(EXF_CHAT_CHATML,
            "{\"messages\": [\"Hi\"]}", "message 1 \"role\" \"content\"");
    refused(EXF_CHAT_CHATML,
            "{\"messages\": [{\"content\": \"a\"}]}", "message 1 has no \"role\"");
    refused(EXF_CHAT_CHATML,
            "{\"messages\": [" USER ",{\"role\": \"tool\", \"content\": \"a\"}]}", "message 2 \"tool\"");
    refused(EXF_CHAT_CHATML,
            "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\"}]}]}", "message 1 \"content\"");
    refused(EXF_CHAT_CHATML,
            "{\"messages\": [{\"role\": \"user\", \"content\": null}]}", "message 1 \"content\"");
    refused(EXF_CHAT_CHATML,
            "{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\", \"tool_calls\": [{}]}]}",
            "message 1 \"tool_calls\" render_chat.py");
    refused(EXF_CHAT_CHATML,
            "{\"tools\": [{}], \"messages\": [" USER "]}", "\"tools\" render_chat.py");
    refused(EXF_CHAT_QWEN3,
            "{\"messages\": [{\"role\": \"assistant\", \"content\": \"<think>a</think>b\"}]}", "message 1 </think>");
    refused(EXF_CHAT_QWEN3,
            "{\"messages\": [{\"role\": \"user\", \"content\": \"<tool_response>\"}]}", "message 1 <tool_response>");
}
END_TEST

/* ---- the template of a checkpoint ------------------------------------------------------------------ */

static const char tokenizer[] = "tests/bad/base/model/tokenizer.json";

static exf_code form_of(exf_chat_form *f, exf_err *err)
{
    exf_tokenizer *t = NULL;
    exf_code rc;
    EXF_TRY(exf_tokenizer_load(&t, tokenizer, EXF_BOS_AUTO, err));
    rc = exf_chat_form_of_model(f, exf_scratch("."), "messages", t, err);
out:
    exf_tokenizer_free(t);
    return rc;
}

START_TEST(where_a_template_lies)
{
    exf_chat_form f = {.kind = EXF_CHAT_NONE};
    static const char one[] = "{\"eos_token\": {\"content\": \"<E>\"}, \"bos_token\": \"<B>\", \"chat_template\": \"{{ x }}\"}";
    static const char several[] = "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"{{ x }}\"}, "
                                  "{\"name\": \"default\", "
                                  "\"template\": \"{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\\\n' + "
                                  "message['content'] + '<|im_end|>' + '\\\\n'}}{% endfor %}\"}]}";
    unlink(exf_scratch("chat_template.jinja"));
    unlink(exf_scratch("tokenizer_config.json"));
    ck_fails(form_of(&f, &e), EXF_MODEL, e, "chat_template.jinja chat_template tokenizer_config.json");
    exf_write_file(exf_scratch("tokenizer_config.json"), one, sizeof one - 1);
    ck_fails(form_of(&f, &e), EXF_MODEL, e, "render_chat.py");
    exf_write_file(exf_scratch("chat_template.jinja"), DEEPSEEK, sizeof DEEPSEEK - 1); /* it goes before */
    ck_ok(form_of(&f, &e), e);
    ck_assert_int_eq(f.kind, EXF_CHAT_DEEPSEEK_V2);
    ck_assert_str_eq(f.bos, "<B>");
    ck_assert_str_eq(f.eos, "<E>");
    exf_chat_form_free(&f);
    unlink(exf_scratch("chat_template.jinja"));
    exf_write_file(exf_scratch("tokenizer_config.json"), several, sizeof several - 1);
    ck_ok(form_of(&f, &e), e);
    ck_assert_int_eq(f.kind, EXF_CHAT_CHATML);
    exf_chat_form_free(&f);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, plain_templates_are_recognised);
    tcase_add_test(t, others_are_not);
    tcase_add_test(t, conversations_in_each_form);
    tcase_add_test(t, shapes_of_conversations);
    tcase_add_test(t, what_no_fixed_form_renders_is_refused);
    tcase_add_test(t, where_a_template_lies);
}
