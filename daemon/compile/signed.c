#include "compile/signed.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "compile/compiled.h"
#include "util/path_trust.h"

/* ---- files that hold a secret ---- */

/* Opens a file that only its owner can read and write. */
static int open_secret(const char *path, struct error *e)
{
    const int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    bool closed = false;
    struct stat st;

    if (fd < 0)
        return error_set(e, errno == EACCES ? ERROR_PERMISSION_DENIED : ERROR_INVALID_ARGUMENT,
                         "%.200s cannot be read: %s", path, strerror(errno));
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        error_set(e, ERROR_INVALID_ARGUMENT, "%.200s is no regular file", path);
    else if (st.st_uid != geteuid() && st.st_uid != 0)
        error_set(e, ERROR_PERMISSION_DENIED, "%.200s belongs to user %u: it must be the daemon's user's, or root's",
                  path, (unsigned)st.st_uid);
    else if (st.st_mode & 077)
        error_set(e, ERROR_INVALID_ARGUMENT, "%.200s can be read or written by others (mode %03o): make it 0600", path,
                  (unsigned)st.st_mode & 0777);
    else if (geteuid() == 0 && path_trust(path, &st, 0, PATH_WRITERS, &closed, e) < 0 && !closed)
        e->code = ERROR_INVALID_ARGUMENT;
    else
        return fd;
    close(fd);
    return -1;
}

/* Reads the file's whole text. Refuses a file that others than its owner (this user, or root) can read or write, and a
 * file longer than `size` - 1 bytes. */
static int secret_file_read(const char *path, char *into, size_t size, struct error *e)
{
    const int fd = open_secret(path, e);
    ssize_t n;

    if (fd < 0)
        return -1;
    n = cache_read_all(fd, into, size);
    if (n < 0)
        error_set(e, ERROR_INVALID_ARGUMENT, "%.200s cannot be read: %s", path, strerror(errno));
    else if ((size_t)n == size || memchr(into, 0, (size_t)n))
        n = error_set(e, ERROR_INVALID_ARGUMENT, "%.200s is too long, or no text", path);
    else
        into[n] = '\0';
    close(fd);
    return n < 0 ? -1 : 0;
}

int secret_file_authorization(const char *path, char into[SECRET_FILE_SIZE], struct error *e)
{
    static const char bearer[] = "bearer ", basic[] = "basic ";
    char text[SECRET_FILE_SIZE / 2];
    const char *rest, *at = text;
    int r = -1;

    if (secret_file_read(path, text, sizeof(text), e) < 0)
        return -1;
    text[strcspn(text, "\r\n")] = '\0';
    while ((unsigned char)*at >= ' ' && *at != 127)
        at++;
    if (*at) {
        error_set(e, ERROR_INVALID_ARGUMENT, "%.200s: its first line has characters that no header has", path);
    } else if (!strncmp(text, bearer, sizeof(bearer) - 1) && text[sizeof(bearer) - 1]) {
        snprintf(into, SECRET_FILE_SIZE, "Bearer %s", text + sizeof(bearer) - 1);
        r = 0;
    } else if (!strncmp(text, basic, sizeof(basic) - 1) && strchr(text, ':')) {
        rest = text + sizeof(basic) - 1;
        memcpy(into, "Basic ", 6);
        sodium_bin2base64(into + 6, SECRET_FILE_SIZE - 6, (const unsigned char *)rest, strlen(rest),
                          sodium_base64_VARIANT_ORIGINAL);
        r = 0;
    } else {
        error_set(e, ERROR_INVALID_ARGUMENT,
                  "%.200s: its first line must be \"bearer TOKEN\" or \"basic USER:PASSWORD\"", path);
    }
    sodium_memzero(text, sizeof(text));
    return r;
}

/* ---- keys ---- */

static const char public_prefix[] = "ed25519:", private_prefix[] = "ed25519-private:";

enum { FILE_BYTES = 1024 };

int signing_public_parse(const char *word, unsigned char ret_public[SIGNING_PUBLIC_BYTES], struct error *e)
{
    const size_t n = sizeof(public_prefix) - 1;

    if (!strncmp(word, private_prefix, sizeof(private_prefix) - 1))
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "this is a private key, which is now to be replaced: here belongs its public key");
    if (strncmp(word, public_prefix, n) != 0 || !key_from_hex(word + n, ret_public))
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "\"%.90s\" is no public key: it must be ed25519: and 64 hexadecimal digits in lower case",
                         word);
    return 0;
}

void signing_public_print(const unsigned char public[SIGNING_PUBLIC_BYTES], char ret_word[SIGNING_WORD_SIZE])
{
    memcpy(ret_word, public_prefix, sizeof(public_prefix) - 1);
    key_to_hex(public, ret_word + sizeof(public_prefix) - 1);
}

static int parse_private(const char *text, struct signing_key *ret_key)
{
    unsigned char seed[crypto_sign_SEEDBYTES];
    const char *at = text;
    char hex[KEY_HEX + 1];
    int r = -1;

    while (*at == '#') {
        at += strcspn(at, "\n");
        at += strspn(at, "\n");
    }
    if (strncmp(at, private_prefix, sizeof(private_prefix) - 1) != 0)
        return -1;
    at += sizeof(private_prefix) - 1;
    if (strlen(at) < KEY_HEX || at[KEY_HEX + strspn(at + KEY_HEX, " \t\r\n")])
        return -1;
    memcpy(hex, at, KEY_HEX);
    hex[KEY_HEX] = '\0';
    if (key_from_hex(hex, seed)) {
        crypto_sign_seed_keypair(ret_key->public, ret_key->secret, seed);
        r = 0;
    }
    sodium_memzero(seed, sizeof(seed));
    sodium_memzero(hex, sizeof(hex));
    return r;
}

int signing_key_read(const char *path, struct signing_key *ret_key, struct error *e)
{
    char text[FILE_BYTES];
    int r;

    if (sodium_init() < 0)
        return error_set(e, ERROR_INTERNAL, "libsodium cannot be set up");
    if (secret_file_read(path, text, sizeof(text), e) < 0)
        return -1;
    r = parse_private(text, ret_key);
    sodium_memzero(text, sizeof(text));
    return r < 0 ? error_set(e, ERROR_INVALID_ARGUMENT,
                             "%.200s is no private key: make one with kopsd --cache-keygen FILE", path)
                 : 0;
}

static int write_key(int fd, const unsigned char *seed, const struct signing_key *key)
{
    char word[SIGNING_WORD_SIZE], hex[KEY_HEX + 1], text[FILE_BYTES];
    int n, r;

    signing_public_print(key->public, word);
    key_to_hex(seed, hex);
    n = snprintf(text, sizeof(text),
                 "# Signs compiled code for a remote cache (cache.remote_key). Keep it secret.\n"
                 "# Its public key, for cache.remote_trust: %s\n%s%s\n",
                 word, private_prefix, hex);
    r = write(fd, text, (size_t)n) == n && fsync(fd) == 0 ? 0 : -1;
    sodium_memzero(text, sizeof(text));
    sodium_memzero(hex, sizeof(hex));
    return r;
}

int signing_key_make(const char *path, struct signing_key *ret_key, struct error *e)
{
    unsigned char seed[crypto_sign_SEEDBYTES];
    int fd, r = -1;

    if (sodium_init() < 0)
        return error_set(e, ERROR_INTERNAL, "libsodium cannot be set up");
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return error_set(e, ERROR_INVALID_ARGUMENT, "%.200s cannot be made: %s", path, strerror(errno));
    randombytes_buf(seed, sizeof(seed));
    crypto_sign_seed_keypair(ret_key->public, ret_key->secret, seed);
    if (write_key(fd, seed, ret_key) < 0) {
        error_set(e, ERROR_INVALID_ARGUMENT, "%.200s cannot be written: %s", path, strerror(errno));
        unlink(path);
    } else {
        r = 0;
    }
    sodium_memzero(seed, sizeof(seed));
    close(fd);
    return r;
}

void signing_key_forget(struct signing_key *key)
{
    sodium_memzero(key, sizeof(*key));
}

/* ---- modules ---- */

static const unsigned char magic[16] = "KOPS signed 1";

enum {
    AT_SIGNER = sizeof(magic),
    AT_KEY = AT_SIGNER + SIGNING_PUBLIC_BYTES,
    AT_TIME = AT_KEY + KEY_BYTES,
    AT_LENGTH = AT_TIME + 8,
};

int signed_make(const struct compiled *compiled, const struct signing_key *key, uint64_t now_s, struct buffer *into)
{
    unsigned char header[SIGNED_HEADER_BYTES] = {0}, signature[SIGNING_BYTES];
    const size_t before = buffer_length(into);
    unsigned char *start;

    memcpy(header, magic, sizeof(magic));
    memcpy(header + AT_SIGNER, key->public, SIGNING_PUBLIC_BYTES);
    memcpy(header + AT_KEY, compiled->key, KEY_BYTES);
    cache_put64(header + AT_TIME, now_s);
    buffer_append(into, header, sizeof(header));
    compiled_serialize(compiled, into);
    if (into->failed)
        return -1;
    start = into->data + into->start + before;
    cache_put64(start + AT_LENGTH, buffer_length(into) - before - sizeof(header));
    crypto_sign_detached(signature, NULL, start, buffer_length(into) - before, key->secret);
    buffer_append(into, signature, sizeof(signature));
    return into->failed ? -1 : 0;
}

static int check(const unsigned char *at, size_t size, const struct signed_trust *trust, const unsigned char *key,
                 uint64_t now_s, struct error *e)
{
    char word[SIGNING_WORD_SIZE];
    uint64_t made_s;
    unsigned i = 0;

    if (size < SIGNED_HEADER_BYTES + SIGNING_BYTES || memcmp(at, magic, sizeof(magic)) != 0)
        return error_set(e, ERROR_INVALID_ARGUMENT, "it is no signed module, or one of another version");
    if (size > SIGNED_MAX || cache_get64(at + AT_LENGTH) != size - SIGNED_HEADER_BYTES - SIGNING_BYTES)
        return error_set(e, ERROR_INVALID_ARGUMENT, "it is cut off, or something stands behind it");
    while (i < trust->n && memcmp(trust->keys[i], at + AT_SIGNER, SIGNING_PUBLIC_BYTES) != 0)
        i++;
    if (i == trust->n) {
        signing_public_print(at + AT_SIGNER, word);
        return error_set(e, ERROR_INVALID_ARGUMENT, "it is signed by %s, which is not trusted", word);
    }
    if (crypto_sign_verify_detached(at + size - SIGNING_BYTES, at, size - SIGNING_BYTES, at + AT_SIGNER) != 0)
        return error_set(e, ERROR_INVALID_ARGUMENT, "its signature is wrong");
    if (memcmp(at + AT_KEY, key, KEY_BYTES) != 0)
        return error_set(e, ERROR_INVALID_ARGUMENT, "it is another key's module");
    made_s = cache_get64(at + AT_TIME);
    if (trust->max_age_s && made_s < now_s && now_s - made_s > trust->max_age_s)
        return error_set(e, ERROR_INVALID_ARGUMENT, "its signature is too old");
    return 0;
}

int signed_open(const void *bytes, size_t size, const struct signed_trust *trust, const unsigned char key[KEY_BYTES],
                uint64_t now_s, struct compiled **ret_compiled, struct error *e)
{
    const unsigned char *at = bytes;
    struct compiled *compiled;

    if (check(at, size, trust, key, now_s, e) < 0 ||
        compiled_parse(at + SIGNED_HEADER_BYTES, size - SIGNED_HEADER_BYTES - SIGNING_BYTES, &compiled, e) < 0)
        return -1;
    if (memcmp(compiled->key, key, KEY_BYTES) != 0)
        error_set(e, ERROR_INVALID_ARGUMENT, "it is another key's module");
    else if (compiled_verify(compiled, e) == 0) {
        *ret_compiled = compiled;
        return 0;
    }
    compiled_unref(compiled);
    return -1;
}
