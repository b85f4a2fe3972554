/* The file of choices, by SQLite, which is loaded at run time: a daemon without it forgets its choices when it ends. */
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/tune/room.h"
#include "util/log.h"

struct sqlite3;
struct sqlite3_stmt;

/* Of sqlite3.h, whose interface and numbers never change: so the build needs no SQLite.
 *
 * X(name, result, parameters): sqlite3_<name>. */
#define FUNCTIONS(X)                                                                                                   \
    X(open_v2, int, (const char *path, struct sqlite3 **ret, int flags, const char *vfs))                              \
    X(close_v2, int, (struct sqlite3 * file))                                                                          \
    X(errmsg, const char *, (struct sqlite3 * file))                                                                   \
    X(exec, int, (struct sqlite3 * file, const char *sql, void *each, void *context, char **ret_error))                \
    X(busy_timeout, int, (struct sqlite3 * file, int ms))                                                              \
    X(prepare_v2, int, (struct sqlite3 * file, const char *sql, int size, struct sqlite3_stmt **ret, void *ret_rest))  \
    X(step, int, (struct sqlite3_stmt * row))                                                                          \
    X(finalize, int, (struct sqlite3_stmt * row))                                                                      \
    X(bind_blob, int, (struct sqlite3_stmt * row, int at, const void *bytes, int size, void *give_back))               \
    X(bind_text, int, (struct sqlite3_stmt * row, int at, const char *text, int size, void *give_back))                \
    X(bind_double, int, (struct sqlite3_stmt * row, int at, double number))                                            \
    X(bind_int64, int, (struct sqlite3_stmt * row, int at, int64_t number))                                            \
    X(column_blob, const void *, (struct sqlite3_stmt * row, int column))                                              \
    X(column_bytes, int, (struct sqlite3_stmt * row, int column))                                                      \
    X(column_text, const unsigned char *, (struct sqlite3_stmt * row, int column))                                     \
    X(column_double, double, (struct sqlite3_stmt * row, int column))                                                  \
    X(column_int64, int64_t, (struct sqlite3_stmt * row, int column))                                                  \
    X(column_type, int, (struct sqlite3_stmt * row, int column))

enum {
    SQLITE_OK = 0,
    SQLITE_ROW = 100,
    SQLITE_DONE = 101,
    SQLITE_NULL = 5, /* a type */
    SQLITE_OPEN_READWRITE = 2,
    SQLITE_OPEN_CREATE = 4,
    SQLITE_OPEN_FULLMUTEX = 0x10000
};
/* What is bound stays where it is until the statement has run. */
#define SQLITE_STATIC NULL

struct store {
    void *library;
    struct sqlite3 *file; /* NULL: nothing is kept */
#define X(name, result, parameters) result(*name) parameters;
    FUNCTIONS(X)
#undef X
};

static const char schema[] =
    "CREATE TABLE IF NOT EXISTS tuned (problem_key BLOB PRIMARY KEY, choice BLOB NOT NULL, machine TEXT NOT NULL,"
    " problem TEXT NOT NULL, chosen TEXT NOT NULL, usual TEXT NOT NULL, us REAL, usual_us REAL, noise REAL NOT NULL,"
    " at INTEGER NOT NULL)";
static const char all[] =
    "SELECT problem_key, choice, machine, problem, chosen, usual, us, usual_us, noise, at FROM tuned"
    " ORDER BY at, rowid";
static const char put[] = "INSERT OR REPLACE INTO tuned VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
/* As many as the daemon keeps. */
static const char trim[] = "DELETE FROM tuned WHERE rowid NOT IN (SELECT rowid FROM tuned ORDER BY at DESC LIMIT 4096)";
_Static_assert(TUNED_MAX == 4096, "the statement above says so");

static bool load(struct store *s)
{
    static const char *const names[] = {
#define X(name, result, parameters) "sqlite3_" #name,
        FUNCTIONS(X)
#undef X
    };
    void **const slots[] = {
#define X(name, result, parameters) (void **)&s->name,
        FUNCTIONS(X)
#undef X
    };

    s->library = dlopen("libsqlite3.so.0", RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; s->library && i < sizeof(names) / sizeof(names[0]); i++)
        if (!(*slots[i] = dlsym(s->library, names[i]))) {
            dlclose(s->library);
            s->library = NULL;
        }
    return s->library != NULL;
}

static void complain(const struct store *s, const char *what)
{
    char quoted[300];
    const char *why = s->file ? s->errmsg(s->file) : "out of memory";

    log_warning("tuning_file", "what=\"%s\" why=%s", what, log_quote(quoted, sizeof(quoted), why, strlen(why)));
}

static void open_file(struct store *s, const char *directory, bool make)
{
    char path[PATH_MAX];

    snprintf(path, sizeof(path), "%s/tuning.sqlite3", directory);
    if (!make && access(path, F_OK) < 0 && errno == ENOENT)
        return;
    if (s->open_v2(path, &s->file, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_FULLMUTEX, NULL) ==
            SQLITE_OK &&
        s->busy_timeout(s->file, 1000) == SQLITE_OK && s->exec(s->file, schema, NULL, NULL, NULL) == SQLITE_OK) {
        chmod(path, S_IRUSR | S_IWUSR);
        return;
    }
    complain(s, "cannot be opened: choices are lost when the daemon ends");
    s->close_v2(s->file);
    s->file = NULL;
}

struct store *store_open(const char *directory, bool make)
{
    struct store *s = calloc(1, sizeof(*s));

    if (!s || !directory)
        return s;
    if (load(s))
        open_file(s, directory, make);
    else
        log_warning("tuning_file", "why=\"there is no libsqlite3.so.0: choices are lost when the daemon ends\"");
    return s;
}

struct store *store_close(struct store *s)
{
    if (s && s->file)
        s->close_v2(s->file);
    if (s && s->library)
        dlclose(s->library);
    free(s);
    return NULL;
}

/* ---- rows ---- */

static bool read_blob(const struct store *s, struct sqlite3_stmt *row, int column, void *into, size_t size)
{
    const void *blob = s->column_blob(row, column);

    if (!blob || (size_t)s->column_bytes(row, column) != size)
        return false;
    memcpy(into, blob, size);
    return true;
}

static void read_text(const struct store *s, struct sqlite3_stmt *row, int column, char *into, size_t size)
{
    const unsigned char *text = s->column_text(row, column);

    snprintf(into, size, "%s", text ? (const char *)text : "");
}

static double read_number(const struct store *s, struct sqlite3_stmt *row, int column)
{
    return s->column_type(row, column) == SQLITE_NULL ? (double)NAN : s->column_double(row, column);
}

/* False: a row of another version of the daemon. */
static bool read_row(const struct store *s, struct sqlite3_stmt *row, struct tuned *t)
{
    memset(t, 0, sizeof(*t));
    if (!read_blob(s, row, 0, &t->key, sizeof(t->key)) || !read_blob(s, row, 1, &t->choice, sizeof(t->choice)) ||
        !memchr(t->choice.variant, '\0', sizeof(t->choice.variant)))
        return false;
    read_text(s, row, 2, t->machine, sizeof(t->machine));
    read_text(s, row, 3, t->problem, sizeof(t->problem));
    read_text(s, row, 4, t->chosen, sizeof(t->chosen));
    read_text(s, row, 5, t->usual, sizeof(t->usual));
    t->us = read_number(s, row, 6);
    t->usual_us = read_number(s, row, 7);
    t->noise = read_number(s, row, 8);
    t->at_s = s->column_int64(row, 9);
    return true;
}

void store_read(struct store *s, void (*each)(void *context, const struct tuned *tuned), void *context)
{
    struct sqlite3_stmt *rows = NULL;
    struct tuned t;
    int r;

    if (!s || !s->file)
        return;
    if (s->prepare_v2(s->file, all, -1, &rows, NULL) != SQLITE_OK) {
        complain(s, "cannot be read");
        return;
    }
    while ((r = s->step(rows)) == SQLITE_ROW)
        if (read_row(s, rows, &t))
            each(context, &t);
    if (r != SQLITE_DONE)
        complain(s, "cannot be read to its end");
    s->finalize(rows);
}

static bool bind_row(const struct store *s, struct sqlite3_stmt *row, const struct tuned *t)
{
    const char *const texts[] = {t->machine, t->problem, t->chosen, t->usual};
    const double numbers[] = {t->us, t->usual_us, t->noise}; /* NaN becomes NULL */
    bool ok = s->bind_blob(row, 1, &t->key, sizeof(t->key), SQLITE_STATIC) == SQLITE_OK &&
              s->bind_blob(row, 2, &t->choice, sizeof(t->choice), SQLITE_STATIC) == SQLITE_OK &&
              s->bind_int64(row, 10, t->at_s) == SQLITE_OK;

    for (int i = 0; ok && i < 4; i++)
        ok = s->bind_text(row, 3 + i, texts[i], -1, SQLITE_STATIC) == SQLITE_OK;
    for (int i = 0; ok && i < 3; i++)
        ok = s->bind_double(row, 7 + i, numbers[i]) == SQLITE_OK;
    return ok;
}

void store_put(struct store *s, const struct tuned *tuned)
{
    struct sqlite3_stmt *row = NULL;

    if (!s || !s->file)
        return;
    if (s->prepare_v2(s->file, put, -1, &row, NULL) != SQLITE_OK || !bind_row(s, row, tuned) ||
        s->step(row) != SQLITE_DONE || s->exec(s->file, trim, NULL, NULL, NULL) != SQLITE_OK)
        complain(s, "cannot be written");
    s->finalize(row);
}

void store_clear(struct store *s)
{
    if (s && s->file && s->exec(s->file, "DELETE FROM tuned", NULL, NULL, NULL) != SQLITE_OK)
        complain(s, "cannot be cleared");
}
