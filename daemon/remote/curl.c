#include "remote/curl.h"

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

/* OpenSSL's flavour, then GnuTLS's. */
static const char *const names[] = {"libcurl.so.4", "libcurl-gnutls.so.4"};

static const struct symbol {
    const char *name;
    size_t offset;
} symbols[] = {
#define SYMBOL(name)                                                                                                   \
    {                                                                                                                  \
        "curl_" #name, offsetof(struct curl_functions, name)                                                           \
    }
    SYMBOL(global_init),   SYMBOL(version),         SYMBOL(slist_append),        SYMBOL(slist_free_all),
    SYMBOL(easy_init),     SYMBOL(easy_setopt),     SYMBOL(easy_getinfo),        SYMBOL(easy_cleanup),
    SYMBOL(easy_strerror), SYMBOL(multi_init),      SYMBOL(multi_setopt),        SYMBOL(multi_add_handle),
    SYMBOL(multi_perform), SYMBOL(multi_info_read), SYMBOL(multi_remove_handle), SYMBOL(multi_wait),
#undef SYMBOL
};

int curl_open(struct curl_functions *ret, struct error *e)
{
    void *library = NULL;

    for (size_t i = 0; !library && i < sizeof(names) / sizeof(names[0]); i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return error_set(e, ERROR_UNSUPPORTED, "libcurl.so.4 cannot be loaded; on Debian: apt-get install libcurl4");
    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        void *symbol = dlsym(library, symbols[i].name);

        if (!symbol) {
            error_set(e, ERROR_UNSUPPORTED, "libcurl has no %s: it is too old", symbols[i].name);
            dlclose(library);
            return -1;
        }
        memcpy((char *)ret + symbols[i].offset, &symbol, sizeof(symbol));
    }
    if (ret->global_init(CURL_ALL) != CURL_OK)
        return error_set(e, ERROR_UNSUPPORTED, "libcurl cannot be set up");
    return 0;
}
