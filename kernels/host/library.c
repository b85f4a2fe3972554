#include "library.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/log.h"

/* ---- finding a library ---- */

/* Whether the file is a shared library of this process's class and machine. */
static bool is_loadable(const char *path)
{
    Elf64_Ehdr ours, theirs;
    bool equal = false;
    int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC), other = open(path, O_RDONLY | O_CLOEXEC);

    if (fd >= 0 && other >= 0 && read(fd, &ours, sizeof(ours)) == sizeof(ours) &&
        read(other, &theirs, sizeof(theirs)) == sizeof(theirs))
        equal = !memcmp(theirs.e_ident, ELFMAG, SELFMAG) && theirs.e_type == ET_DYN &&
                theirs.e_ident[EI_CLASS] == ours.e_ident[EI_CLASS] && theirs.e_machine == ours.e_machine;
    if (fd >= 0)
        close(fd);
    if (other >= 0)
        close(other);
    return equal;
}

static bool try_folder(const char *folder, size_t length, const char *file, char *into, size_t size)
{
    return length > 0 && (size_t)snprintf(into, size, "%.*s/%s", (int)length, folder, file) < size && is_loadable(into);
}

/* Searches the loader's cache for strings that end in the name, and tries them as paths. */
static bool find_in_cache(const char *cache, size_t length, const char *file, char *into, size_t size)
{
    char wanted[64];
    size_t n = (size_t)snprintf(wanted, sizeof(wanted), "/%s", file) + 1; /* with the terminator */
    const char *at = cache, *end = cache + length;

    while (at && at < end && (at = memmem(at, (size_t)(end - at), wanted, n))) {
        const char *start = at;

        while (start > cache && start[-1])
            start--;
        if (*start == '/' && try_folder(start, (size_t)(at - start), file, into, size))
            return true;
        at += n;
    }
    return false;
}

/* Searches as dlopen() does: LD_LIBRARY_PATH, the cache, the standard folders. */
static bool find(const char *file, const char *cache, size_t length, char *into, size_t size)
{
    static const char *const folders[] = {"/lib64", "/usr/lib64", "/lib", "/usr/lib"};
    const char *list = getenv("LD_LIBRARY_PATH");

    while (list && *list) {
        size_t n = strcspn(list, ":;");

        if (try_folder(list, n, file, into, size))
            return true;
        list += n + (list[n] != '\0');
    }
    if (cache && find_in_cache(cache, length, file, into, size))
        return true;
    for (unsigned i = 0; i < sizeof(folders) / sizeof(folders[0]); i++)
        if (try_folder(folders[i], strlen(folders[i]), file, into, size))
            return true;
    return false;
}

static bool find_usual(const char *const *usual, char *into, size_t size)
{
    int fd = open("/etc/ld.so.cache", O_RDONLY | O_CLOEXEC);
    struct stat st = {0};
    void *cache = MAP_FAILED;
    bool found = false;

    if (fd >= 0 && fstat(fd, &st) == 0 && st.st_size > 0)
        cache = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    for (; *usual && !found; usual++)
        found = find(*usual, cache == MAP_FAILED ? NULL : cache, (size_t)st.st_size, into, size);
    if (cache != MAP_FAILED)
        munmap(cache, (size_t)st.st_size);
    if (fd >= 0)
        close(fd);
    return found;
}

void library_init(struct library *library, const char *what, const char *setting, const char *named,
                  const char *const *usual)
{
    *library = (struct library){.what = what, .setting = setting};
    pthread_mutex_init(&library->lock, NULL);
    if (named && !strcmp(named, "none"))
        return;
    if (named && strcmp(named, "auto") != 0)
        snprintf(library->path, sizeof(library->path), "%s", named);
    else if (!find_usual(usual, library->path, sizeof(library->path)))
        library->path[0] = '\0';
}

void library_deinit(struct library *library)
{
    pthread_mutex_destroy(&library->lock); /* the library stays loaded, since it may have threads */
}

/* ---- loading a library ---- */

static int load(const struct library *library, const struct library_symbol *symbols, unsigned count, struct error *e)
{
    void *handle = dlopen(library->path, RTLD_NOW | RTLD_LOCAL);

    if (!handle)
        return error_set(e, ERROR_UNSUPPORTED, "the %s %s cannot be loaded (%s); set %s to another or \"none\"",
                         library->what, library->path, dlerror(), library->setting);
    for (unsigned i = 0; i < count; i++) {
        void *symbol = dlsym(handle, symbols[i].name);

        if (symbol)
            memcpy(symbols[i].into, &symbol, sizeof(symbol));
        else if (!symbols[i].optional)
            return error_set(e, ERROR_UNSUPPORTED, "the %s %s has no %s; set %s to another or \"none\"", library->what,
                             library->path, symbols[i].name, library->setting);
    }
    return 0;
}

bool library_is_loaded(const struct library *library)
{
    return atomic_load_explicit(&library->ready, memory_order_acquire);
}

void library_give_up(struct library *library, const char *why)
{
    if (!atomic_exchange(&library->failed, true))
        log_warning("library_given_up", "path=%s why=\"%s\"", library->path, why);
}

bool library_has_failed(const struct library *library)
{
    return atomic_load_explicit(&library->failed, memory_order_acquire);
}

int library_load(struct library *library, const struct library_symbol *symbols, unsigned count,
                 void (*prepare)(void *context), void *context, struct error *e)
{
    if (library_is_loaded(library))
        return 0;
    pthread_mutex_lock(&library->lock);
    if (!library_is_loaded(library) && !library_has_failed(library)) {
        if (load(library, symbols, count, &library->why) == 0) {
            if (prepare)
                prepare(context);
            atomic_store_explicit(&library->ready, true, memory_order_release);
        } else {
            atomic_store_explicit(&library->failed, true, memory_order_release);
            log_warning("library_not_loaded", "path=%s", library->path);
        }
    }
    if (!atomic_load(&library->ready))
        *e = library->why;
    pthread_mutex_unlock(&library->lock);
    return atomic_load(&library->ready) ? 0 : -1;
}
