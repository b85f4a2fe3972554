/* The file of choices, by SQLite, which is loaded at run time: a daemon without it forgets its choices when it ends. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "compile/cache.h"
#include "server/tune/room.h"
#include "util/log.h"

struct sqlite3;
struct sqlite3_stmt;

/* Declarations of sqlite3.h, whose interface and numbers never change: so the build needs no SQLite.
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
/* Bound values stay where they are until the statement has run. */
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
/* Tables of their own: daemons of other versions know the first one as it is. */
static const char more_tables[] =
    "CREATE TABLE IF NOT EXISTS extent (problem_key BLOB PRIMARY KEY, tried INTEGER NOT NULL,"
    " candidates INTEGER NOT NULL);"
    "CREATE TABLE IF NOT EXISTS users (problem_key BLOB PRIMARY KEY, uids BLOB NOT NULL);"
    "CREATE TABLE IF NOT EXISTS unfinished (problem_key BLOB PRIMARY KEY, tried BLOB NOT NULL)";
static const char all[] =
    "SELECT problem_key, choice, machine, problem, chosen, usual, us, usual_us, noise, at, tried, candidates, uids"
    " FROM tuned LEFT JOIN extent USING (problem_key) LEFT JOIN users USING (problem_key) ORDER BY at, tuned.rowid";
static const char put[] = "INSERT OR REPLACE INTO tuned VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
static const char put_extent[] = "INSERT OR REPLACE INTO extent VALUES (?1, ?2, ?3)";
static const char put_users[] = "INSERT OR REPLACE INTO users VALUES (?1, ?2)";
static const char all_unfinished[] = "SELECT problem_key, tried FROM unfinished ORDER BY rowid";
static const char put_unfinished[] = "INSERT OR REPLACE INTO unfinished VALUES (?1, ?2)";
static const char end_unfinished[] = "DELETE FROM unfinished WHERE problem_key = ?1";
/* As many as the daemon keeps. */
static const char trim[] = "DELETE FROM tuned WHERE rowid NOT IN (SELECT rowid FROM tuned ORDER BY at DESC LIMIT 4096);"
                           "DELETE FROM extent WHERE problem_key NOT IN (SELECT problem_key FROM tuned);"
                           "DELETE FROM users WHERE problem_key NOT IN (SELECT problem_key FROM tuned)";
_Static_assert(TUNED_MAX == 4096, "the statement above says so");
static const char trim_unfinished[] =
    "DELETE FROM unfinished WHERE rowid NOT IN (SELECT rowid FROM unfinished ORDER BY rowid DESC LIMIT 256)";
_Static_assert(UNFINISHED_MAX == 256, "the statement above says so");
static const char clear[] = "DELETE FROM tuned; DELETE FROM extent; DELETE FROM users; DELETE FROM unfinished";

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

/* Whether nobody else decides what is in the directory. Makes the file where it is missing, which nobody else may read.
 */
static bool make_file(const char *directory, const char *name)
{
    char quoted[2 * ERROR_MESSAGE_MAX];
    struct error e;
    const int fd = cache_directory_open(directory, &e);
    int file;

    if (fd < 0) {
        log_warning("tuning_file", "what=\"choices are lost when the daemon ends\" why=%s",
                    log_quote(quoted, sizeof(quoted), e.message, strlen(e.message)));
        return false;
    }
    file = openat(fd, name, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    if (file >= 0) {
        fchmod(file, S_IRUSR | S_IWUSR);
        close(file);
    }
    close(fd);
    return true; /* SQLite says what is wrong with the file */
}

static void open_file(struct store *s, const char *directory, bool make)
{
    static const char name[] = "tuning.sqlite3";
    char path[PATH_MAX];

    snprintf(path, sizeof(path), "%s/%s", directory, name);
    if ((!make && access(path, F_OK) < 0 && errno == ENOENT) || !make_file(directory, name))
        return;
    if (s->open_v2(path, &s->file, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_FULLMUTEX, NULL) ==
            SQLITE_OK &&
        s->busy_timeout(s->file, 1000) == SQLITE_OK && s->exec(s->file, schema, NULL, NULL, NULL) == SQLITE_OK &&
        s->exec(s->file, more_tables, NULL, NULL, NULL) == SQLITE_OK)
        return;
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

/* Choices of earlier versions of the daemon have none. */
static void read_users(const struct store *s, struct sqlite3_stmt *row, int column, struct tune_users *users)
{
    const size_t one = sizeof(users->uids[0]), bytes = (size_t)s->column_bytes(row, column);

    if (bytes % one == 0 && bytes <= sizeof(users->uids) && read_blob(s, row, column, users->uids, bytes))
        users->n = (uint32_t)(bytes / one);
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
    t->tried = (uint32_t)s->column_int64(row, 10); /* 0 where a daemon that does not count has chosen */
    t->candidates = (uint32_t)s->column_int64(row, 11);
    read_users(s, row, 12, &t->users);
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

static bool bind_extent(const struct store *s, struct sqlite3_stmt *row, const struct tuned *t)
{
    return s->bind_blob(row, 1, &t->key, sizeof(t->key), SQLITE_STATIC) == SQLITE_OK &&
           s->bind_int64(row, 2, t->tried) == SQLITE_OK && s->bind_int64(row, 3, t->candidates) == SQLITE_OK;
}

/* Without identities: the next daemon gives their numbers to others. */
static bool bind_users(const struct store *s, struct sqlite3_stmt *row, const struct tuned *t, struct tune_users *real)
{
    real->n = 0;
    for (uint32_t i = 0; i < t->users.n; i++)
        if (!uid_is_identity(t->users.uids[i]))
            tune_users_add(real, t->users.uids[i]);
    return s->bind_blob(row, 1, &t->key, sizeof(t->key), SQLITE_STATIC) == SQLITE_OK &&
           s->bind_blob(row, 2, real->uids, (int)(real->n * sizeof(real->uids[0])), SQLITE_STATIC) == SQLITE_OK;
}

static bool finish(struct store *s, struct sqlite3_stmt *row, bool bound)
{
    const bool done = bound && s->step(row) == SQLITE_DONE;

    return s->finalize(row) == SQLITE_OK && done;
}

static bool put_all(struct store *s, const struct tuned *t)
{
    struct sqlite3_stmt *row = NULL;
    struct tune_users real;

    if (s->prepare_v2(s->file, put, -1, &row, NULL) != SQLITE_OK || !finish(s, row, bind_row(s, row, t)) ||
        s->prepare_v2(s->file, put_extent, -1, &row, NULL) != SQLITE_OK || !finish(s, row, bind_extent(s, row, t)) ||
        s->prepare_v2(s->file, put_users, -1, &row, NULL) != SQLITE_OK)
        return false;
    return finish(s, row, bind_users(s, row, t, &real)) && s->exec(s->file, trim, NULL, NULL, NULL) == SQLITE_OK;
}

/* All or nothing, and the disk is waited for once. */
static void in_one(struct store *s, bool (*put_it)(struct store *s, const void *what), const void *what)
{
    const bool begun = s->exec(s->file, "BEGIN", NULL, NULL, NULL) == SQLITE_OK, done = begun && put_it(s, what);

    if (!done)
        complain(s, "cannot be written");
    if (begun && s->exec(s->file, done ? "COMMIT" : "ROLLBACK", NULL, NULL, NULL) != SQLITE_OK && done)
        complain(s, "cannot be written");
}

static bool put_tuned(struct store *s, const void *what)
{
    return put_all(s, what);
}

void store_put(struct store *s, const struct tuned *tuned)
{
    if (s && s->file)
        in_one(s, put_tuned, tuned);
}

void store_clear(struct store *s)
{
    if (s && s->file && s->exec(s->file, clear, NULL, NULL, NULL) != SQLITE_OK)
        complain(s, "cannot be cleared");
}

/* ---- what is unfinished ---- */

static bool read_unfinished(const struct store *s, struct sqlite3_stmt *row, struct unfinished *u)
{
    const size_t one = sizeof(u->tried[0]), bytes = (size_t)s->column_bytes(row, 1);

    memset(u, 0, sizeof(*u));
    u->n = (uint32_t)(bytes / one);
    return bytes % one == 0 && u->n > 0 && u->n <= TUNING_CANDIDATES_MAX &&
           read_blob(s, row, 0, &u->key, sizeof(u->key)) && read_blob(s, row, 1, u->tried, bytes);
}

void store_read_unfinished(struct store *s, void (*each)(void *context, const struct unfinished *u), void *context)
{
    struct sqlite3_stmt *rows = NULL;
    struct unfinished u;

    if (!s || !s->file)
        return;
    if (s->prepare_v2(s->file, all_unfinished, -1, &rows, NULL) != SQLITE_OK) {
        complain(s, "cannot be read");
        return;
    }
    while (s->step(rows) == SQLITE_ROW)
        if (read_unfinished(s, rows, &u))
            each(context, &u);
    s->finalize(rows);
}

static bool put_one_unfinished(struct store *s, const void *what)
{
    const struct unfinished *u = what;
    struct sqlite3_stmt *row = NULL;
    bool bound;

    if (s->prepare_v2(s->file, u->n ? put_unfinished : end_unfinished, -1, &row, NULL) != SQLITE_OK)
        return false;
    bound = s->bind_blob(row, 1, &u->key, sizeof(u->key), SQLITE_STATIC) == SQLITE_OK &&
            (!u->n || s->bind_blob(row, 2, u->tried, (int)(u->n * sizeof(u->tried[0])), SQLITE_STATIC) == SQLITE_OK);
    return finish(s, row, bound) && s->exec(s->file, trim_unfinished, NULL, NULL, NULL) == SQLITE_OK;
}

void store_put_unfinished(struct store *s, const struct unfinished *u)
{
    if (s && s->file)
        in_one(s, put_one_unfinished, u);
}
