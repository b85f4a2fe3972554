#include "compile/toolkit.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <sodium.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/packages.h"

#define FNV_BEGIN 0xcbf29ce484222325U
#define FNV_PRIME 0x100000001b3U

static uint64_t mix(uint64_t hash, const void *data, size_t size)
{
    const unsigned char *at = data;

    for (size_t i = 0; i < size; i++)
        hash = (hash ^ at[i]) * FNV_PRIME;
    return hash;
}

static bool take_part(const char **list, char ret_part[PATH_MAX])
{
    size_t n;

    if (!*list)
        return false;
    *list += strspn(*list, ":");
    n = strcspn(*list, ":");
    snprintf(ret_part, PATH_MAX, "%.*s", (int)n, *list);
    *list += n;
    return n > 0;
}

/* ---- the library ---- */

static const char *const libraries[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
enum { N_LIBRARIES = sizeof(libraries) / sizeof(libraries[0]) };

static bool library_in(const char *directory, struct toolkit_place *p)
{
    char full[2 * PATH_MAX];

    for (size_t i = 0; i < N_LIBRARIES; i++) {
        snprintf(full, sizeof(full), "%s/%s", directory, libraries[i]);
        if (realpath(full, p->nvrtc))
            return true;
    }
    p->nvrtc[0] = '\0';
    return false;
}

static int is_version(const struct dirent *entry)
{
    return !strncmp(entry->d_name, "cuda-", 5);
}

/* Every /usr/local/cuda-X.Y that is there without a link called cuda, the newest first. */
static bool library_in_versions(struct toolkit_place *p)
{
    struct dirent **names;
    int n = scandir("/usr/local", &names, is_version, versionsort);
    bool found = false;

    for (int i = n - 1; i >= 0; i--) {
        char directory[PATH_MAX];

        snprintf(directory, sizeof(directory), "/usr/local/%s/lib64", names[i]->d_name);
        found = found || library_in(directory, p);
        free(names[i]);
    }
    if (n >= 0)
        free(names);
    return found;
}

static bool find_library(const char *nvrtc, struct toolkit_place *p)
{
    static const char *const directories[] = {
        "/usr/local/cuda/lib64",      "/usr/local/cuda/lib", "/opt/cuda/lib64", "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu", "/usr/lib64",          "/usr/lib"};
    const char *path = getenv("LD_LIBRARY_PATH");
    char found[PATH_MAX];

    if (nvrtc && *nvrtc)
        return realpath(nvrtc, p->nvrtc) || (p->nvrtc[0] = '\0');
    if (packages_find_library(libraries, N_LIBRARIES, found) && realpath(found, p->nvrtc))
        return true;
    while (take_part(&path, found))
        if (*found == '/' && library_in(found, p))
            return true;
    for (size_t i = 0; i < sizeof(directories) / sizeof(directories[0]); i++)
        if (library_in(directories[i], p))
            return true;
    return library_in_versions(p);
}

/* Calls see() for each name in a folder. Keys of compiled code depend on the names, so half a list is an error. A
 * folder that this user may not list counts as empty. */
static int list_folder(const char *directory, void (*see)(DIR *d, const char *name, void *context), void *context,
                       struct error *e)
{
    DIR *d = opendir(directory);
    const struct dirent *entry;
    int cause;

    if (!d && errno == EACCES)
        return 0;
    if (d)
        for (errno = 0; (entry = readdir(d)); errno = 0)
            see(d, entry->d_name, context);
    cause = errno;
    if (d)
        closedir(d);
    if (cause)
        return error_set(e, ERROR_UNSUPPORTED, "the compiler's folder %.150s cannot be read: %s", directory,
                         strerror(cause));
    return 0;
}

static void see_version(DIR *d, const char *name, void *context)
{
    struct toolkit_place *p = context;
    const char *suffix = strstr(p->nvrtc, ".so.");
    const unsigned major = suffix ? (unsigned)strtoul(suffix + 4, NULL, 10) : 0; /* 0: not known */
    unsigned x, y, end = 0;

    (void)d;
    if (sscanf(name, "libnvrtc-builtins.so.%u.%u%n", &x, &y, &end) == 2 && !name[end] && (x == major || !major) &&
        x < 1000 && y < 1000)
        snprintf(p->name, sizeof(p->name), "NVRTC %u.%u", x, y);
}

/* ---- the headers ---- */

static bool add_include(struct toolkit_place *p, const char *directory)
{
    struct stat s;

    if (p->n_includes == TOOLKIT_MAX_INCLUDES || !realpath(directory, p->includes[p->n_includes]) ||
        stat(p->includes[p->n_includes], &s) < 0 || !S_ISDIR(s.st_mode))
        return false;
    p->n_includes++;
    return true;
}

/* `directory`: the library's. The headers lie beside it in a toolkit and in the packages of Python. */
static void find_headers(const char *include, const char *directory, struct toolkit_place *p)
{
    static const char *const places[] = {"/../include", "/../../include", "/../../cuda_runtime/include",
                                         "/usr/local/cuda/include"};
    const size_t last = sizeof(places) / sizeof(places[0]) - 1;
    char full[2 * PATH_MAX], file[2 * PATH_MAX + 16];
    unsigned n;

    for (const char *at = include; take_part(&at, full);)
        add_include(p, full);
    for (size_t i = 0; !include && !p->n_includes && i <= last; i++) {
        snprintf(full, sizeof(full), "%s%s", i < last ? directory : "", places[i]);
        snprintf(file, sizeof(file), "%s/cuda_fp16.h", full);
        if (access(file, R_OK) == 0)
            add_include(p, full);
    }
    n = p->n_includes;
    for (unsigned i = 0; i < n; i++) {
        snprintf(full, sizeof(full), "%s/cccl", p->includes[i]);
        add_include(p, full);
    }
}

/* The names and sizes of the files in a directory, in no order: a sum of each. */
static void add_hash(DIR *d, const char *name, void *context)
{
    uint64_t *sum = context, size;
    struct stat s;

    if (fstatat(dirfd(d), name, &s, 0) < 0 || !S_ISREG(s.st_mode))
        return;
    size = (uint64_t)s.st_size;
    *sum += mix(mix(FNV_BEGIN, name, strlen(name)), &size, sizeof(size));
}

static int identify(struct toolkit_place *p, struct error *e)
{
    int fd = open(p->nvrtc, O_RDONLY | O_CLOEXEC);
    unsigned char head[1 << 14] = {0}; /* with the linker's identification of the build */
    uint64_t hash = 0, library;
    struct stat s = {0};

    if (fd >= 0 && fstat(fd, &s) == 0 && pread(fd, head, sizeof(head), 0) < 0)
        s.st_size = 0;
    if (fd >= 0)
        close(fd);
    library = mix(mix(FNV_BEGIN, head, sizeof(head)), &s.st_size, sizeof(s.st_size));
    for (unsigned i = 0; i < p->n_includes; i++) {
        uint64_t sum = 0;

        if (list_folder(p->includes[i], add_hash, &sum, e) < 0)
            return -1;
        hash += (i + 1) * sum;
    }
    snprintf(p->identity, sizeof(p->identity), "%s %016llx %016llx", p->name, (unsigned long long)library,
             (unsigned long long)hash);
    return 0;
}

int toolkit_find(const char *nvrtc, const char *include, struct toolkit_place *ret_place, struct error *e)
{
    struct toolkit_place *p = ret_place;
    char directory[PATH_MAX];

    *p = (struct toolkit_place){0};
    if (nvrtc && !strcmp(nvrtc, "none"))
        return error_set(e, ERROR_UNSUPPORTED, "compiling is switched off (kernels.nvrtc is none)");
    if (!find_library(nvrtc, p))
        return error_set(e, ERROR_UNSUPPORTED,
                         nvrtc && *nvrtc ? "there is no compiler: %.150s (kernels.nvrtc) is not there"
                                         : "there is no compiler: NVRTC was not found%s; install the CUDA toolkit's "
                                           "libnvrtc (with pip: './kops-....whl[nvrtc]'), or name it in kernels.nvrtc",
                         nvrtc && *nvrtc ? nvrtc : "");
    /* libnvrtc-builtins.so.X.Y beside the library tells the version; the library's own name mostly has X. */
    snprintf(p->name, sizeof(p->name), "NVRTC");
    snprintf(directory, sizeof(directory), "%.*s", (int)(strrchr(p->nvrtc, '/') - p->nvrtc), p->nvrtc);
    if (list_folder(directory, see_version, p, e) < 0)
        return -1;
    find_headers(include && *include ? include : NULL, directory, p);
    return identify(p, e);
}

/* ---- trees ---- */

struct look {
    bool stamps_only;
    uint64_t stamp;
    crypto_generichash_state digest; /* names and contents, equal on every machine that has these headers */
};

static int refuse(const char *path, const char *why, struct error *e)
{
    error_set(e, ERROR_INVALID_ARGUMENT, "kernels.include_extra: %.160s %s", path, why);
    return error_detail_text(e, "key", "kernels.include_extra");
}

/* The compiler's user is another one where the daemon is root. */
static int check_entry(const char *path, const struct stat *s, struct error *e)
{
    const mode_t needed = S_ISDIR(s->st_mode) ? S_IROTH | S_IXOTH : S_IROTH;

    if (!S_ISREG(s->st_mode) && !S_ISDIR(s->st_mode) && !S_ISLNK(s->st_mode))
        return refuse(path, "is no file, folder or link", e);
    if (geteuid() == 0 && !S_ISLNK(s->st_mode) && (s->st_mode & needed) != needed)
        return refuse(path, "cannot be read by the compiler's user: `chmod -R go+rX` the tree", e);
    if (s->st_uid != 0 && s->st_uid != geteuid())
        return refuse(path, "belongs to another user than root or the daemon's: `chown -R root` the tree", e);
    if (!S_ISLNK(s->st_mode) && (s->st_mode & (S_IWGRP | S_IWOTH)))
        return refuse(path, "can be written by others: `chmod -R go-w` the tree", e);
    return 0;
}

/* In a folder above others could put another tree in place of this one, unless it has the sticky bit. */
static int check_above(const char *tree, struct error *e)
{
    char path[PATH_MAX];
    struct stat s;

    snprintf(path, sizeof(path), "%s", tree);
    for (char *slash; (slash = strrchr(path, '/')) && slash != path;) {
        *slash = '\0';
        if (stat(path, &s) < 0)
            return refuse(path, strerror(errno), e);
        if (s.st_uid != 0 && s.st_uid != geteuid())
            return refuse(path, "is above the tree and belongs to another user than root or the daemon's", e);
        if ((s.st_mode & (S_IWGRP | S_IWOTH)) && !(s.st_mode & S_ISVTX))
            return refuse(path, "is above the tree and can be written by others", e);
    }
    return 0;
}

static int add_content(crypto_generichash_state *h, const char *path, struct error *e)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    unsigned char bytes[1 << 14];
    ssize_t n = fd < 0 ? -1 : 1;

    while (n > 0 && (n = read(fd, bytes, sizeof(bytes))) > 0)
        crypto_generichash_update(h, bytes, (size_t)n);
    if (n < 0)
        refuse(path, strerror(errno), e);
    if (fd >= 0)
        close(fd);
    return n < 0 ? -1 : 0;
}

static int look_at(struct look *l, const FTSENT *entry, const char *name, struct error *e)
{
    const struct stat *s = entry->fts_statp;
    const uint64_t times[] = {s->st_dev,
                              s->st_ino,
                              s->st_mode,
                              (uint64_t)s->st_size,
                              (uint64_t)s->st_mtim.tv_sec,
                              (uint64_t)s->st_mtim.tv_nsec,
                              (uint64_t)s->st_ctim.tv_sec,
                              (uint64_t)s->st_ctim.tv_nsec};
    const uint64_t about[] = {s->st_mode & S_IFMT, S_ISREG(s->st_mode) ? (uint64_t)s->st_size : 0};
    char target[PATH_MAX];
    ssize_t n;

    l->stamp = mix(mix(l->stamp, name, strlen(name) + 1), times, sizeof(times));
    if (l->stamps_only)
        return 0;
    if (check_entry(entry->fts_path, s, e) < 0)
        return -1;
    crypto_generichash_update(&l->digest, (const unsigned char *)name, strlen(name) + 1);
    crypto_generichash_update(&l->digest, (const unsigned char *)about, sizeof(about));
    if (S_ISREG(s->st_mode))
        return add_content(&l->digest, entry->fts_path, e);
    if (!S_ISLNK(s->st_mode))
        return 0;
    n = readlink(entry->fts_path, target, sizeof(target));
    if (n < 0)
        return refuse(entry->fts_path, strerror(errno), e);
    crypto_generichash_update(&l->digest, (const unsigned char *)target, (size_t)n);
    return 0;
}

static int by_name(const FTSENT **a, const FTSENT **b)
{
    return strcmp((*a)->fts_name, (*b)->fts_name);
}

/* Each entry is stamped before its content is read: what changes meanwhile has another stamp later. */
static int walk(const char *path, struct look *l, struct error *e)
{
    char *const roots[] = {(char *)(uintptr_t)path, NULL};
    FTS *tree = fts_open(roots, FTS_PHYSICAL | FTS_COMFOLLOW | FTS_NOCHDIR, by_name);
    const FTSENT *entry;
    unsigned n = 0;
    int r = 0;

    if (!tree)
        return refuse(path, strerror(errno), e);
    l->stamp = FNV_BEGIN;
    crypto_generichash_init(&l->digest, NULL, 0, crypto_generichash_BYTES);
    while (r == 0 && (entry = fts_read(tree))) {
        if (entry->fts_info == FTS_DP)
            continue;
        if (entry->fts_info == FTS_DNR || entry->fts_info == FTS_ERR || entry->fts_info == FTS_NS)
            r = refuse(entry->fts_path, strerror(entry->fts_errno), e);
        else if (++n > TOOLKIT_MAX_TREE_ENTRIES)
            r = refuse(path, "has more than 65536 files: name the folder of the headers alone", e);
        else
            r = look_at(l, entry, entry->fts_path + strlen(path), e);
    }
    fts_close(tree);
    return r;
}

static int add_tree(const char *path, struct toolkit_place *p, uint64_t *digest, struct error *e)
{
    unsigned char bytes[crypto_generichash_BYTES];
    struct look l = {.stamps_only = false};
    char *tree = p->includes[p->n_includes];
    struct stat s;
    uint64_t own;

    if (p->n_trees == TOOLKIT_MAX_TREES || p->n_includes == TOOLKIT_MAX_INCLUDES)
        return error_set(e, ERROR_INVALID_ARGUMENT, "kernels.include_extra: more than %d folders", TOOLKIT_MAX_TREES);
    if (*path != '/')
        return refuse(path, "is no absolute path", e);
    if (!realpath(path, tree) || stat(tree, &s) < 0)
        return refuse(path, strerror(errno), e);
    if (!S_ISDIR(s.st_mode) || !strcmp(tree, "/"))
        return refuse(path, "is no folder of headers", e);
    if (check_above(tree, e) < 0 || walk(tree, &l, e) < 0)
        return -1;
    crypto_generichash_final(&l.digest, bytes, sizeof(bytes));
    memcpy(&own, bytes, sizeof(own));
    *digest = (*digest ^ own) * FNV_PRIME;
    p->stamp = (p->stamp ^ l.stamp) * FNV_PRIME;
    p->n_includes++;
    p->n_trees++;
    return 0;
}

int toolkit_add_trees(const char *extra, struct toolkit_place *p, struct error *e)
{
    const size_t length = strlen(p->identity);
    uint64_t digest = 0;
    char path[PATH_MAX];

    for (const char *at = extra; take_part(&at, path);)
        if (add_tree(path, p, &digest, e) < 0)
            return -1;
    if (p->n_trees)
        snprintf(p->identity + length, sizeof(p->identity) - length, " %016llx", (unsigned long long)digest);
    return 0;
}

uint64_t toolkit_stamp(const char *const *trees, unsigned n)
{
    struct look l = {.stamps_only = true};
    struct error ignored;
    uint64_t stamp = 0;

    for (unsigned i = 0; i < n; i++)
        stamp = (stamp ^ (walk(trees[i], &l, &ignored) < 0 ? 0 : l.stamp)) * FNV_PRIME;
    return stamp;
}

/* ---- the library, loaded ---- */

/* The library with the compiler's own headers stands beside it, and NVRTC asks for it by this name. */
static int open_builtins(const struct nvrtc *n, const char *path, struct error *e)
{
    const char *slash = strrchr(path, '/');
    char full[PATH_MAX];

    snprintf(full, sizeof(full), "%.*slibnvrtc-builtins.so.%d.%d", slash ? (int)(slash - path) + 1 : 0, path, n->major,
             n->minor);
    if (!dlopen(full, RTLD_NOW | RTLD_LOCAL))
        return error_set(e, ERROR_UNSUPPORTED, "NVRTC is not complete: %.200s", dlerror());
    return 0;
}

int nvrtc_open(struct nvrtc *n, const char *path, struct error *e)
{
    static const char *const names[] = {
#define X(name, parameters) "nvrtc" #name,
        NVRTC_FUNCTIONS(X)
#undef X
    };
    void **const slots[] = {
#define X(name, parameters) (void **)&n->name,
        NVRTC_FUNCTIONS(X)
#undef X
    };
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);

    if (!library)
        return error_set(e, ERROR_UNSUPPORTED, "NVRTC cannot be loaded: %.200s", dlerror());
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        *slots[i] = dlsym(library, names[i]);
        if (!*slots[i])
            return error_set(e, ERROR_UNSUPPORTED, "%.150s is too old: it has no %s (kernels.nvrtc)", path, names[i]);
    }
    if (n->Version(&n->major, &n->minor) != NVRTC_SUCCESS)
        return error_set(e, ERROR_UNSUPPORTED, "%.150s does not tell its version", path);
    return open_builtins(n, path, e);
}

char *nvrtc_demangle(const char *symbol)
{
    /* NVRTC's libraries bring the C++ library along. */
    void *library = dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_NOLOAD);
    char *(*demangle)(const char *, char *, size_t *, int *);
    int status;

    if (!library)
        return NULL;
    *(void **)&demangle = dlsym(library, "__cxa_demangle");
    return demangle ? demangle(symbol, NULL, NULL, &status) : NULL;
}
