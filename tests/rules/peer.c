/* The daemon's and libkops's rules about kernel source, for test_rules.py: reads requests from the standard input and
 * writes one answer each. A request is a letter, the payload's length in 4 bytes, and the payload; an answer is a
 * length in 4 bytes and bytes. An answer that begins with '!' is the name of an error. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kops/kops.h>

#include "compile/options.h"
#include "core/kernel.h"
#include "source/hostcode.h"

_Static_assert((int)KOPS_MAX_KERNEL_TENSORS == (int)KERNELS_TENSORS_MAX, "libkops's public limit is the daemon's");

enum { MAX_TEXTS = 16, MAX_ANSWER = 1 << 20 };

struct answer {
    size_t length;
    char bytes[MAX_ANSWER];
};

static void put(struct answer *a, const char *bytes, size_t n)
{
    if (a->length + n > sizeof(a->bytes))
        abort();
    memcpy(a->bytes + a->length, bytes, n);
    a->length += n;
}

static void put_error(struct answer *a, const struct error *e)
{
    put(a, "!", 1);
    put(a, error_code_name(e->code), strlen(error_code_name(e->code)));
}

/* The payload's parts between bytes of 0. */
static unsigned cut(const char *payload, size_t length, const char **ret_parts, size_t *ret_lengths)
{
    unsigned n = 0;

    for (const char *at = payload, *end = payload + length;; n++) {
        const char *zero = memchr(at, '\0', (size_t)(end - at));

        if (n == MAX_TEXTS)
            abort();
        ret_parts[n] = at;
        ret_lengths[n] = (size_t)((zero ? zero : end) - at);
        if (!zero)
            return n + 1;
        at = zero + 1;
    }
}

static void blanked(const char *payload, size_t length, struct answer *a)
{
    struct hostcode_text texts[MAX_TEXTS];
    const char *parts[MAX_TEXTS];
    size_t lengths[MAX_TEXTS];
    unsigned n = cut(payload, length, parts, lengths);

    for (unsigned i = 0; i < n; i++)
        texts[i] = (struct hostcode_text){.text = parts[i], .length = lengths[i]};
    if (hostcode_blank(texts, n) < 0)
        abort();
    for (unsigned i = 0; i < n; i++) {
        put(a, "", i > 0);
        put(a, texts[i].blanked, texts[i].length);
        free(texts[i].blanked);
    }
}

static void type(const char *payload, struct answer *a)
{
    enum kops_dtype dtype;
    const char *name = kops_dtype_parse(payload, &dtype) ? kops_dtype_name(dtype) : "";

    put(a, name, strlen(name));
}

static enum dtype dtype_of(const char *text)
{
#define X(NAME, name, value, size)                                                                                     \
    if (!strcmp(text, name))                                                                                           \
        return DTYPE_##NAME;
    KOPS_DTYPES(X)
#undef X
    abort();
}

/* "DTYPE int|uint|float|bool NUMBER": the bytes of a scalar argument, in hexadecimal. */
static void scalar(const char *payload, struct answer *a)
{
    struct kernel_param p = {.name = "x", .kind = KERNEL_SCALAR};
    unsigned char value[8];
    char dtype[16], kind[8], number[400], hex[3];
    struct error e;
    int r;

    if (sscanf(payload, "%15s %7s %399s", dtype, kind, number) != 3)
        abort();
    p.dtype = dtype_of(dtype);
    p.size = (uint16_t)dtype_size(p.dtype);
    if (!strcmp(kind, "int"))
        r = kernel_scalar_from_int(&p, strtoll(number, NULL, 10), value, &e);
    else if (!strcmp(kind, "uint"))
        r = kernel_scalar_from_uint(&p, strtoull(number, NULL, 10), value, &e);
    else if (!strcmp(kind, "float"))
        r = kernel_scalar_from_float(&p, strtod(number, NULL), value, &e);
    else
        r = kernel_scalar_from_bool(&p, number[0] == '1', value, &e);
    if (r < 0)
        put_error(a, &e);
    for (unsigned i = 0; r == 0 && i < p.size; i++) {
        snprintf(hex, sizeof(hex), "%02x", value[i]);
        put(a, hex, 2);
    }
}

static void options(const char *payload, size_t length, struct answer *a)
{
    const char *parts[MAX_TEXTS];
    size_t lengths[MAX_TEXTS];
    struct options made = {0};
    struct error e;

    if (options_normalise(parts, cut(payload, length, parts, lengths), "sm_90a", "/toolkit/include", &made, &e) < 0) {
        put_error(a, &e);
        return;
    }
    for (unsigned i = 0; i < made.n; i++) {
        put(a, "", i > 0);
        put(a, made.texts[i], strlen(made.texts[i]));
    }
    options_free(&made);
}

int main(void)
{
    static struct answer a;
    uint32_t length;
    int letter;

    while ((letter = getchar()) != EOF) {
        char *payload;

        if (fread(&length, sizeof(length), 1, stdin) != 1 || !(payload = malloc(length + 1)) ||
            fread(payload, 1, length, stdin) != length)
            return 1;
        payload[length] = '\0';
        a.length = 0;
        switch (letter) {
        case 'H':
            blanked(payload, length, &a);
            break;
        case 'T':
            type(payload, &a);
            break;
        case 'S':
            scalar(payload, &a);
            break;
        case 'O':
            options(payload, length, &a);
            break;
        default:
            return 1;
        }
        length = (uint32_t)a.length;
        fwrite(&length, sizeof(length), 1, stdout);
        fwrite(a.bytes, 1, a.length, stdout);
        free(payload);
    }
    return fflush(stdout) ? 1 : 0;
}
