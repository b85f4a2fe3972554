/* Sources that attack the compiler, and helpers that die: the daemon hears of each, and nothing stays behind. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "compile/compiler_internal.h"
#include "compile/helper.h"
#include "helper_support.h"

/* Unrolls for ever, and takes memory slowly. */
#define ENDLESS                                                                                                        \
    "constexpr unsigned long long f(unsigned long long n)\n"                                                           \
    "{ unsigned long long s = 0; for (unsigned long long i = 0; i < n; i++) s += i * i; return s; }\n"                 \
    "template <int N> struct X { static constexpr unsigned long long v = X<N - 1>::v + f(1000000 + N); };\n"           \
    "template <> struct X<0> { static constexpr unsigned long long v = 0; };\n"                                        \
    "extern \"C\" __global__ void k(unsigned long long *p) { *p = X<190>::v; }\n"

OPENING_TEST(test_files_stay_closed)
{
    static const char *const paths[] = {"/etc/passwd",     "../../../../../../../etc/passwd",
                                        "etc/passwd",      "/proc/self/environ",
                                        "/proc/self/maps", "/proc/self/cmdline"};
    struct fixture *f = fixture_open();

    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        struct outcome o;
        char source[300];

        snprintf(source, sizeof(source), "#include \"%s\"\n" SIMPLE_KERNEL, paths[i]);
        o = compile_one(f, source, "add");
        assert_failed(&o, ERROR_COMPILE_FAILED, "source");
        assert_non_null(strstr(o.log, "cannot open source file"));
        assert_null(strstr(o.log, "root:"));
        assert_null(strstr(o.log, "/bin/"));
        assert_null(strstr(o.log, "nvrtc="));
    }
}

static void little_memory(struct compiler_config *config)
{
    config->memory_mib = 256;
}

/* Doubles a text until the memory is used up; a type's name is as good as any. */
OPENING_TEST(test_memory)
{
    static const char source[] = "#define X1(a) a a a a a a a a a a\n"
                                 "#define X2(a) X1(X1(a))\n"
                                 "#define X4(a) X2(X2(a))\n"
                                 "#define X8(a) X4(X4(a))\n"
                                 "extern \"C\" __global__ void k(int *p) { X8(*p += 1;) }\n";
    struct fixture *f;
    struct outcome o;

#if defined(__SANITIZE_ADDRESS__)
    skip(); /* its allocator does not return when there is no memory */
#endif
    f = fixture_open_with(little_memory);
    o = compile_one(f, source, "k");
    assert_failed(&o, ERROR_COMPILE_FAILED, "memory");
    assert_compiles(f, SIMPLE_KERNEL, "add");
}

OPENING_TEST(test_large_source)
{
    const size_t size = 10 << 20;
    char *source = malloc(size + 1);
    struct fixture *f = fixture_open();

    assert_non_null(source);
    memset(source, '\n', size);
    source[size] = '\0';
    memcpy(source + size - strlen(SIMPLE_KERNEL), SIMPLE_KERNEL, strlen(SIMPLE_KERNEL));
    assert_compiles(f, source, "add");
    free(source);
}

OPENING_TEST(test_too_large)
{
    static const char *const entries[] = {"add"};
    struct compile_input input = {.name = "k.cu", .entries = entries, .n_entries = 1, .arch = "sm_90"};
    struct fixture *f = fixture_open();
    struct outcome o;
    char *source;

    input.length = COMPILER_MAX_INPUT + 1;
    source = calloc(1, input.length + 1);
    assert_non_null(source);
    input.source = source;
    compile_start_input(f, &input, &o);
    compile_wait(f, &o);
    assert_failed(&o, ERROR_LIMIT_EXCEEDED, "");
    free(source);
}

/* A log of megabytes arrives cut off. */
OPENING_TEST(test_large_log)
{
    static const char source[] = "#define W1(n) int n##0 = ; int n##1 = ; int n##2 = ; int n##3 = ; int n##4 = ;\n"
                                 "#define W2(n) W1(n##0) W1(n##1) W1(n##2) W1(n##3) W1(n##4) W1(n##5) W1(n##6)\n"
                                 "#define W3(n) W2(n##0) W2(n##1) W2(n##2) W2(n##3) W2(n##4) W2(n##5) W2(n##6)\n"
                                 "#define W4(n) W3(n##0) W3(n##1) W3(n##2) W3(n##3) W3(n##4) W3(n##5) W3(n##6)\n"
                                 "extern \"C\" __global__ void k(int *p) { W4(v) }\n";
    const struct outcome o = compile_one(fixture_open(), source, "k");

    assert_failed(&o, ERROR_COMPILE_FAILED, "source");
    assert_in_range(strlen(o.log), 1000, COMPILED_MAX_LOG);
}

static bool is_warm(void *context)
{
    return compiler_is_warm(((struct fixture *)context)->compiler);
}

/* The helper that forks: our own child. 0: there is none. */
static pid_t forking_helper(void)
{
    pid_t pids[64];
    unsigned n = helper_pids(pids, 64);

    assert_in_range(n, 0, 64);
    for (unsigned i = 0; i < n; i++) {
        char path[64], text[512], *at;
        FILE *file;
        long parent = 0;

        snprintf(path, sizeof(path), "/proc/%d/stat", (int)pids[i]);
        file = fopen(path, "r");
        if (!file)
            continue;
        if (fgets(text, sizeof(text), file) && (at = strrchr(text, ')')))
            parent = strtol(at + 4, NULL, 10);
        fclose(file);
        if (parent == (long)getpid())
            return pids[i];
    }
    return 0;
}

static bool no_helper(void *context)
{
    return helper_pids(NULL, 0) == 0;
}

static bool some_forking_helper(void *context)
{
    return forking_helper() != 0;
}

/* Those who wait are not told of helpers that are killed while they start. */
OPENING_TEST(test_death_at_the_start)
{
    static const char *const entries[] = {"add", NULL};
    struct fixture *f = fixture_open();
    struct outcome o[3];

    for (int i = 0; i < 3; i++)
        compile_start(f, SIMPLE_KERNEL, entries, &o[i]);
    for (int i = 0; i < 4; i++) {
        run_until(f, some_forking_helper, NULL);
        assert_int_equal(kill(forking_helper(), SIGKILL), 0);
        run_until(f, no_helper, NULL);
    }
    for (int i = 0; i < 3; i++) {
        compile_wait(f, &o[i]);
        assert_non_null(o[i].compiled);
    }
}

static void keep_shortly(struct compiler_config *config)
{
    config->keep_s = 1;
}

OPENING_TEST(test_idle)
{
    struct fixture *f = fixture_open_with(keep_shortly);

    for (int i = 0; i < 2; i++) {
        assert_compiles(f, SIMPLE_KERNEL, "add");
        assert_true(helper_pids(NULL, 0) > 0);
        run_until(f, no_helper, NULL);
    }
}

OPENING_TEST(test_nothing_stays)
{
    struct fixture *f = fixture_open();
    unsigned before = 0;

    for (int i = 0; i < 12; i++) {
        compile_one(f, i % 3 ? SIMPLE_KERNEL : "error", "add");
        run_until(f, is_warm, f);
        if (i == 1)
            before = open_descriptors();
        assert_in_range(helper_pids(NULL, 0), 1, 4);
    }
    assert_in_range(open_descriptors(), 1, before + 4); /* the last process may not be reaped yet */
    close_now(f);
    assert_int_equal(helper_pids(NULL, 0), 0);
}

OPENING_TEST(test_close_at_any_time)
{
    static const char *const entries[] = {"k", NULL};
    unsigned before = open_descriptors();

    for (int turns = 0; turns < 40; turns += 3) {
        struct fixture *f = fixture_open();
        struct outcome o;

        compile_start(f, ENDLESS, entries, &o);
        for (int i = 0; i < turns; i++) {
            uv_run(&f->loop, UV_RUN_NOWAIT);
            usleep(5000);
        }
        close_now(f);
        assert_true(o.done);
        assert_failed(&o, ERROR_CANCELLED, "");
        assert_int_equal(helper_pids(NULL, 0), 0);
        assert_int_equal(open_descriptors(), before);
    }
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* not even a zombie */
    assert_int_equal(errno, ECHILD);
}

static void no_program(struct compiler_config *config)
{
    config->binary = "/bin/false";
}

static void no_program_file(struct compiler_config *config)
{
    config->binary = "/nonexistent/program";
}

static void unknown_user(struct compiler_config *config)
{
    config->user = "no-such-user-here";
}

OPENING_TEST(test_helper_does_not_start)
{
    void (*const changes[])(struct compiler_config *) = {no_program, no_program_file, unknown_user};

    for (int i = 0; i < (getuid() ? 2 : 3); i++) {
        struct fixture *f = fixture_open_with(changes[i]);
        struct outcome o = compile_one(f, SIMPLE_KERNEL, "add");
        struct error e;

        assert_failed(&o, ERROR_UNSUPPORTED, "");
        assert_false(compiler_usable(f->compiler, &e));
        o = compile_one(f, SIMPLE_KERNEL, "add"); /* at once: not tried again yet */
        assert_failed(&o, ERROR_UNSUPPORTED, "");
    }
}
