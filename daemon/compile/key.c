#include "compile/key.h"

#include <sodium.h>
#include <string.h>

/* Another one for another encoding, or when the same input gets another meaning. */
static const char format[] = "kops code 1";

/* A length before each text keeps neighbours apart. */
static void add(crypto_generichash_state *h, const void *bytes, size_t n)
{
    unsigned char length[8];

    for (unsigned i = 0; i < 8; i++)
        length[i] = (unsigned char)((uint64_t)n >> (8 * i));
    crypto_generichash_update(h, length, sizeof(length));
    if (n)
        crypto_generichash_update(h, bytes, n);
}

static void add_text(crypto_generichash_state *h, const char *text)
{
    add(h, text, strlen(text));
}

static void add_count(crypto_generichash_state *h, unsigned n)
{
    unsigned char bytes[4] = {(unsigned char)n, (unsigned char)(n >> 8), (unsigned char)(n >> 16),
                              (unsigned char)(n >> 24)};

    add(h, bytes, sizeof(bytes));
}

/* By name: the next one behind `last`, NULL: the first. Quadratic in a number that is small. */
static const struct compile_file *next_file(const struct compile_input *input, const struct compile_file *last)
{
    const struct compile_file *next = NULL;

    for (unsigned i = 0; i < input->n_files; i++) {
        const struct compile_file *f = &input->files[i];

        if ((!last || strcmp(f->name, last->name) > 0) && (!next || strcmp(f->name, next->name) < 0))
            next = f;
    }
    return next;
}

void key_make(const struct compile_input *input, const char *identity, unsigned char ret_key[KEY_BYTES])
{
    crypto_generichash_state h;

    crypto_generichash_init(&h, NULL, 0, KEY_BYTES);
    add_text(&h, format);
    add_text(&h, identity);
    add_text(&h, input->arch);
    add_count(&h, input->n_options);
    for (unsigned i = 0; i < input->n_options; i++)
        add_text(&h, input->options[i]);
    add_text(&h, input->name);
    add(&h, input->source, input->length);
    add_count(&h, input->n_files);
    for (const struct compile_file *f = next_file(input, NULL); f; f = next_file(input, f)) {
        add_text(&h, f->name);
        add(&h, f->text, f->length);
    }
    add_count(&h, input->n_entries);
    for (unsigned i = 0; i < input->n_entries; i++)
        add_text(&h, input->entries[i]);
    crypto_generichash_final(&h, ret_key, KEY_BYTES);
}

void key_to_hex(const unsigned char key[KEY_BYTES], char ret_hex[KEY_HEX + 1])
{
    static const char digits[] = "0123456789abcdef";

    for (unsigned i = 0; i < KEY_BYTES; i++) {
        ret_hex[2 * i] = digits[key[i] >> 4];
        ret_hex[2 * i + 1] = digits[key[i] & 15];
    }
    ret_hex[KEY_HEX] = '\0';
}

bool key_from_hex(const char *hex, unsigned char ret_key[KEY_BYTES])
{
    unsigned char key[KEY_BYTES] = {0};

    if (strspn(hex, "0123456789abcdef") != KEY_HEX || hex[KEY_HEX])
        return false;
    for (unsigned i = 0; i < KEY_HEX; i++) {
        unsigned digit = (unsigned)(hex[i] <= '9' ? hex[i] - '0' : hex[i] - 'a' + 10);

        key[i / 2] = (unsigned char)(key[i / 2] << 4 | digit);
    }
    memcpy(ret_key, key, KEY_BYTES);
    return true;
}
