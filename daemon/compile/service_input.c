/* Inputs outlive the request that brought them while the disk is asked. */
#include <stdlib.h>
#include <string.h>

#include "compile/service_internal.h"

/* Counts at first, with `at` NULL, and then copies: both times the same steps. */
struct place {
    unsigned char *at;
    size_t bytes;
};

static void *put(struct place *p, const void *from, size_t n)
{
    void *to = p->at ? p->at + p->bytes : NULL;

    if (to && n)
        memcpy(to, from, n);
    p->bytes += n;
    return to;
}

static const char *put_text(struct place *p, const char *text)
{
    return put(p, text, strlen(text) + 1);
}

static const char *put_bytes(struct place *p, const char *bytes, size_t n)
{
    const char *to = put(p, bytes, n);

    put(p, "", 1);
    return to;
}

static const char *const *put_texts(struct place *p, const char *const *texts, unsigned n)
{
    const char **to = put(p, texts, n * sizeof(*texts));

    for (unsigned i = 0; i < n; i++) {
        /* The array comes before its texts, whose places are known one by one. */
        const char *text = put_text(p, texts[i]);

        if (to)
            to[i] = text;
    }
    return to;
}

static void align(struct place *p)
{
    p->bytes = (p->bytes + 15) & ~(size_t)15;
}

/* Behind the input itself, whose copy is `to`. */
static void put_input(struct place *p, const struct compile_input *input, struct compile_input *to)
{
    struct compile_file *files;

    p->bytes = sizeof(*to);
    align(p);
    files = put(p, input->files, input->n_files * sizeof(*input->files));
    to->files = files;
    for (unsigned i = 0; i < input->n_files; i++) {
        const char *name = put_text(p, input->files[i].name);
        const char *text = put_bytes(p, input->files[i].text, input->files[i].length);

        if (files) {
            files[i].name = name;
            files[i].text = text;
        }
    }
    align(p);
    to->options = put_texts(p, input->options, input->n_options);
    align(p);
    to->entries = put_texts(p, input->entries, input->n_entries);
    to->name = put_text(p, input->name);
    to->arch = put_text(p, input->arch);
    to->source = put_bytes(p, input->source, input->length);
}

struct compile_input *service_copy_input(const struct compile_input *input)
{
    struct compile_input to = *input, *copy;
    struct place p = {NULL, 0};

    put_input(&p, input, &to);
    copy = malloc(p.bytes);
    if (!copy)
        return NULL;
    p.at = (unsigned char *)copy;
    put_input(&p, input, &to);
    *copy = to;
    return copy;
}
