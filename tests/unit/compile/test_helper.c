/* Compiles by real helper processes: this program itself, called with --compile-helper. Sources that are right, at
 * fault, or attack the compiler. Helpers that are killed: functional_compile. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "compile/compiler.h"
#include "compile/helper.h"
#include "tests/support/unit.h"

#define SIMPLE_KERNEL                                                                                                  \
    "extern \"C\" __global__ void add(float *c, const float *a, const float *b, int n)\n"                              \
    "{\n"                                                                                                              \
    "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"                                                             \
    "    if (i < n)\n"                                                                                                 \
    "        c[i] = a[i] + b[i];\n"                                                                                    \
    "}\n"

#define K "extern \"C\" __global__ void k"

struct fixture {
    uv_loop_t loop;
    struct compiler *compiler;
    bool closed;
};

struct outcome {
    uv_loop_t *loop;
    bool done;
    struct compiled *compiled;
    struct error error;
    char reason[16]; /* "": none */
    char *log;
};

static void on_closed(void *context)
{
    struct fixture *f = context;

    f->closed = true;
}

static void fixture_close(void *fixture)
{
    struct fixture *f = fixture;

    compiler_close(f->compiler, on_closed, f);
    while (uv_run(&f->loop, UV_RUN_ONCE))
        ;
    assert_true(f->closed);
    assert_int_equal(uv_loop_close(&f->loop), 0);
    free(f);
}

/* What is 0 there is as most tests have it. */
static struct fixture *fixture_open_with(struct compiler_config config)
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct error e;

    assert_non_null(f);
    config.helpers = 2;
    config.time_s = 60;
    config.memory_mib = config.memory_mib ? config.memory_mib : 1024;
    config.keep_s = config.keep_s ? config.keep_s : 60;
    assert_int_equal(uv_loop_init(&f->loop), 0);
    f->compiler = compiler_new(&f->loop, &config, &e);
    assert_non_null(f->compiler);
    opened(f, fixture_close);
    if (!compiler_usable(f->compiler, &e)) {
        print_message("not possible here: %s\n", e.message);
        skip();
    }
    return f;
}

static struct fixture *fixture_open(void)
{
    return fixture_open_with((struct compiler_config){.user = NULL});
}

static void unref(void *compiled)
{
    compiled_unref(compiled);
}

static void on_done(void *context, struct compiled *compiled, const struct error *e,
                    const struct compile_failure *failure)
{
    struct outcome *o = context;

    assert_false(o->done);
    o->done = true;
    uv_stop(o->loop); /* it may be about to wait for more */
    o->compiled = compiled ? opened(compiled, unref) : NULL;
    o->error = *e;
    if (failure) {
        snprintf(o->reason, sizeof(o->reason), "%s", failure->reason);
        assert_int_equal(strlen(failure->log), failure->log_length);
        o->log = opened(strdup(failure->log), free);
    }
}

static void compile_start_input(struct fixture *f, const struct compile_input *input, struct outcome *o)
{
    *o = (struct outcome){.loop = &f->loop};
    assert_non_null(compiler_compile(f->compiler, input, on_done, o));
    assert_false(o->done);
}

static void compile_wait(struct fixture *f, struct outcome *o)
{
    while (!o->done)
        uv_run(&f->loop, UV_RUN_ONCE);
}

/* For one entry, and sm_90a. */
static void compile_start(struct fixture *f, const char *source, const char *entry, struct outcome *o)
{
    const struct compile_input input = {.name = "kernel.cu",
                                        .source = source,
                                        .length = strlen(source),
                                        .entries = &entry,
                                        .n_entries = 1,
                                        .arch = "sm_90a"};

    compile_start_input(f, &input, o);
}

static struct outcome compile_one(struct fixture *f, const char *source, const char *entry)
{
    struct outcome o;

    compile_start(f, source, entry, &o);
    compile_wait(f, &o);
    return o;
}

static void assert_compiles(struct fixture *f, const char *source, const char *entry)
{
    const struct outcome o = compile_one(f, source, entry);

    if (!o.compiled)
        fail_msg("%s\n%s\n%s", source, o.error.message, o.log ? o.log : "");
}

static void assert_failed(const struct outcome *o, enum error_code code, const char *reason)
{
    assert_null(o->compiled);
    if (o->error.code != code || strcmp(o->reason, reason) != 0)
        print_message("%s (%s): %s\n%s", error_code_name(o->error.code), o->reason, o->error.message,
                      o->log ? o->log : "");
    assert_int_equal(o->error.code, code);
    assert_string_equal(o->reason, reason);
}

/* Helpers of this program, and their forks, which keep the command line. */
static unsigned helpers(void)
{
    char text[8192], mine[32];
    unsigned n = 0;
    glob_t all;

    snprintf(mine, sizeof(mine), "parent=%d", (int)getpid());
    assert_int_equal(glob("/proc/[0-9]*/cmdline", 0, NULL, &all), 0);
    for (size_t i = 0; i < all.gl_pathc; i++) {
        const int fd = open(all.gl_pathv[i], O_RDONLY | O_CLOEXEC);
        const ssize_t got = fd >= 0 ? read(fd, text, sizeof(text)) : 0;

        if (fd >= 0)
            close(fd);
        n += got > 0 && memmem(text, (size_t)got, mine, strlen(mine) + 1);
    }
    globfree(&all);
    return n;
}

static unsigned open_descriptors(void)
{
    DIR *d = opendir("/proc/self/fd");
    unsigned n = 0;

    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

/* ---- sources that are right, or at fault ---- */

/* A file for nvcc: kernels among code for the host. */
OPENING_TEST(test_host_code)
{
    static const char source[] =
        "#include <stdio.h>\n"
        "#include <cuda_runtime.h>\n"
        "#include <vector>\n"
        "static float host[16];\n"
        "__global__ void twice(float *x, uint n) { if (threadIdx.x < n) x[threadIdx.x] *= 2; }\n"
        "void check(cudaError_t e) { if (e) { fprintf(stderr, \"no\\n\"); exit(1); } }\n"
        "int main() {\n"
        "  std::vector<float> v(16); float *d; check(cudaMalloc(&d, 64));\n"
        "  twice<<<1, 16>>>(d, 16); check(cudaDeviceSynchronize()); return 0;\n"
        "}\n";
    static const char using_files[] =
        "#include \"a.h\"\n#include \"b/c.h\"\ntemplate <class T> __global__ void g(T *x) {}\n" K
        "(int *x) { *x = A + N; }\n";
    static const struct compile_file files[] = {{"a.h", "#define A 1\n", 12}, {"b/c.h", "", 0}};
    static const char *const options[] = {"-DN=4"}, *const entries[] = {"k", "g<int>"};
    const struct compile_input with_files = {"k.cu", using_files, strlen(using_files), files, 2, options, 1, entries,
                                             2,      "sm_80"};
    struct fixture *f = fixture_open();
    struct outcome o = compile_one(f, source, "twice");

    assert_non_null(o.compiled);
    assert_string_equal(o.compiled->entries[0].lowered, "_Z5twicePfj");
    o = compile_one(f, source, "thrice");
    assert_failed(&o, ERROR_COMPILE_FAILED, "entry");
    assert_non_null(strstr(o.error.message, "twice(float*, unsigned int)"));
    o = compile_one(f, "extern \"C\" __global__ void k(int *p) { int unused; *p = 1; }\n", "k");
    assert_non_null(o.compiled);
    assert_non_null(strstr(o.compiled->log, "kernel.cu(1)"));
    assert_non_null(strstr(o.compiled->log, "unused"));
    compile_start_input(f, &with_files, &o);
    compile_wait(f, &o);
    assert_non_null(o.compiled);
    assert_int_equal(o.compiled->n_entries, 2);
}

/* Without an #include, or with one that NVRTC cannot follow. */
OPENING_TEST(test_what_nvcc_has_unasked)
{
    static const char *const sources[] = {
        K "(uint *x, ushort y, ulong z, size_t n, uint32_t w) { *x = y + z + n + w; }\n",
        "#include <sys/types.h>\n" K "(uint *x) { *x = 1; }\n",
        "#include <algorithm>\n#include <cuda/barrier>\n" K "(uint *x)\n"
        "{ __shared__ cuda::barrier<cuda::thread_scope_block> b; if (!threadIdx.x) init(&b, 32); __syncthreads();\n"
        "  b.arrive_and_wait(); x[threadIdx.x] = std::min(1, 2); }\n",
        "template <class T> __device__ typename std::enable_if<sizeof(T) == 4, T>::type f(T a) { return a; }\n" K
        "(float *x) { *x = std::is_same<float, float>::value ? f(*x) : 0; }\n",
        "#include <utility>\n#include <cuda_fp16.h>\n#include <type_traits>\n" K "(half2 *x)\n"
        "{ half2 a = x[1]; std::pair<int, int> p{1, 2}; x[p.first] = std::move(a); }\n",
        "#include <cub/cub.cuh>\n" K "(float *x)\n"
        "{ typedef cub::BlockReduce<float, 128> Reduce; __shared__ typename Reduce::TempStorage t;\n"
        "  float s = Reduce(t).Sum(x[threadIdx.x]); if (!threadIdx.x) *x = s; }\n",
        "#include <curand.h>\n#include <curand_kernel.h>\nvoid f() { curandGenerator_t g; curandDestroyGenerator(g); "
        "}\n" K "(float *x) { curandStatePhilox4_32_10_t s; curandState t; curand_init(1, 2, 0, &s);\n"
        "curand_init(1, 2, 3, &t); *x = curand_uniform(&s) + curand_normal4(&s).x + curand_normal(&t); }\n",
        "#include <thrust/complex.h>\n" K
        "(thrust::complex<float> *x) { x[0] = thrust::exp(x[1]) * thrust::conj(x[0]); }\n",
        "#include <thrust/device_vector.h>\n#include <thrust/sort.h>\n#include <cufft.h>\n#include <nccl.h>\n"
        "#include <nvtx3/nvToolsExt.h>\nthrust::device_vector<int> v;\nvoid host() { nvtxRangePop(); ncclGroupEnd(); "
        "}\n"
        "void sort() { thrust::sort(v.begin(), v.end()); }\n" K "(cufftComplex *x) { x->x = 1; }\n",
        "#include <functional>\n#include <optional>\n#include <array>\n#include <tuple>\n#include <limits>\n"
        "template <class Op> __device__ float f(Op op) { return op(1.f, 2.f); }\n" K
        "(float *x, std::array<int, 3> a)\n"
        "{ std::optional<float> o = f(std::plus<float>()); auto t = std::make_tuple(a[1], 2.f);\n"
        "  *x = *o + std::get<1>(t) + std::numeric_limits<float>::infinity(); }\n",
        "#include <algorithm>\n#include <cmath>\n" K "(float *x) { __shared__ int s[std::max(2, 4)];\n"
        "s[0] = std::clamp(3, 1, 2); *x = std::ldexp(x[1], s[0]) + std::lround(x[2]); }\n",
        "constexpr int cdiv(int a, int b) { return (a + b - 1) / b; }\nstruct C { static constexpr int N = 4; int n;\n"
        "static constexpr int size() { return N * 2; } constexpr C(int a) : n(a) {}\n"
        "constexpr int get() const { return n; } };\n" K "(float *x, int n)\n"
        "{ __shared__ float s[C::size() + cdiv(100, 4)]; s[0] = C(n).get(); x[0] = s[0] + C::N + cdiv(n, 4); }\n",
        "static const char *names[] = {\"a\", \"b\"};\n" K "(float *x, long *y)\n{ auto f = [=] __device__ (float a) "
        "{ return a; }; x[0] = f(__FLT_MAX__ + __FLT_EPSILON__); y[0] = __INT_MAX__; }\n",
    };
    struct fixture *f = fixture_open();

    for (size_t i = 0; i < sizeof(sources) / sizeof(sources[0]); i++)
        assert_compiles(f, sources[i], "k");
}

/* Host code that is kept where a kernel might use it, and that the compiler does not understand. */
OPENING_TEST(test_host_code_that_is_given_up)
{
    static const char *const sources[] = {
        "#include <iostream>\nusing std::cout;\nusing std::endl;\nint main() { cout << endl; }\n",
        "#include <memory>\n#include <functional>\nusing F = std::function<void(float *, int)>;\n"
        "typedef std::unique_ptr<float[]> P;\ntemplate <class T> using Q = std::shared_ptr<T>;\n",
        "#include <string>\n#include <map>\nconst std::string name = \"x\";\nconst auto f = [](int x) { return x; };\n"
        "static const std::map<std::string, int> sizes = {{\"a\", 1}};\n",
        "#include <chrono>\n#include <filesystem>\nusing Clock = std::chrono::steady_clock;\n"
        "namespace fs = std::filesystem;\nusing namespace std::chrono;\n",
        "#include <stdexcept>\nstruct E : public std::runtime_error {\n  using "
        "std::runtime_error::runtime_error;\n};\n",
        "#include <thread>\n#include <mutex>\nstruct Log {\n  std::mutex m; std::thread t; void run() { t.join(); "
        "}\n};\n",
        "#include <torch/extension.h>\nusing torch::Tensor;\nTensor f(Tensor x) { return x; }\n",
        "const float root = std::sqrt(2.0f) * rand();\n",
    };
    struct fixture *f = fixture_open();

    for (size_t i = 0; i < sizeof(sources) / sizeof(sources[0]); i++) {
        char source[1024];

        snprintf(source, sizeof(source), "%s" K "(float *x) { *x = 1; }\n", sources[i]);
        assert_compiles(f, source, "k");
    }
}

/* Each source has a fault that the log names with file and line. */
OPENING_TEST(test_faults)
{
    static const struct {
        const char *source, *entry, *reason, *in_log, *in_message;
    } cases[] = {
        {"\n\n" K "(int *p) { *p = ; }\n", "k", "source", "kernel.cu(3): error", "kernel.cu(3): error"},
        {K "(int *p) { *p = nothing; }\n", "k", "source", "\"nothing\" is undefined", "undefined"},
        {"#include \"missing.h\"\n", "k", "source", "missing.h", "missing.h"},
        {"#include <missing/also.cuh>\n", "k", "source", "missing/also.cuh", "missing"},
        {"#error \"not today\"\n", "k", "source", "not today", "not today"},
        {"int \xff\x01\xc3;\n", "k", "entry", "host variable", "no kernel"},
        {"__globl__ void k(int *p) { *p = 1; }\n", "k", "entry", "kernel.cu(1): error", "no kernel"},
        {"\xff\xfe broken \x01 bytes\n", "k", "entry", "", "no kernel"},
        {SIMPLE_KERNEL, "sub", "entry", "sub", "it has add"},
        {SIMPLE_KERNEL, "add<float>", "entry", "add<float>", "it has add"},
        {SIMPLE_KERNEL, "_Z3addv", "entry", "", "it has add"},
        {"template <class T> __global__ void t(T *x) {}\n", "t", "entry", "t", "no kernel"},
        {"__device__ void d(int *x) { *x = 1; }\n", "d", "entry", "d", "no kernel"},
        {"__global__ void o(int *x) {}\n__global__ void o(float *x) {}\n", "o", "entry", "o", "o(float*)"},
        {"", "k", "entry", "k", "no kernel"},
        /* The kernel's own fault is what is said, whatever else was found. */
        {"using std::cout;\n" K "(float *x) { *x = MISSING; }\n", "k", "source", "", "MISSING"},
        /* A kernel that needs what was given up is told what was wrong with that. */
        {"const float c = missing(1);\n" K "(float *x) { *x = c; }\n", "k", "source", "", "missing"},
    };
    struct fixture *f = fixture_open();

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct outcome o = compile_one(f, cases[i].source, cases[i].entry);

        assert_failed(&o, ERROR_COMPILE_FAILED, cases[i].reason);
        if (!strstr(o.log, cases[i].in_log) || !strstr(o.error.message, cases[i].in_message))
            fail_msg("case %zu: %s\n%s", i, o.error.message, o.log);
        for (const char *c = o.log; *c; c++)
            assert_true((unsigned char)*c < 0x80 && (*c >= ' ' || *c == '\n' || *c == '\t'));
    }
}

OPENING_TEST(test_weaker_sandboxes)
{
    for (int off = 0; off < 2; off++) { /* then every source gets a helper of its own, as where none may fork */
        struct fixture *f = fixture_open_with((struct compiler_config){
            .sandbox = off ? COMPILER_SANDBOX_OFF : COMPILER_SANDBOX_BEST_EFFORT, .alone = off});
        const struct outcome o = compile_one(f, "#include \"/etc/passwd\"\n" SIMPLE_KERNEL, "add");

        assert_failed(&o, ERROR_COMPILE_FAILED, "source");
        assert_int_equal(off, strstr(o.log, "root:") != NULL); /* what switching it off means */
        assert_compiles(f, SIMPLE_KERNEL, "add");
    }
}

OPENING_TEST(test_many_parameters)
{
    static char source[8192];
    struct fixture *f = fixture_open();
    size_t n = (size_t)snprintf(source, sizeof(source), "extern \"C\" __global__ void k(");
    struct outcome o;

    for (int i = 0; i < COMPILED_MAX_PARAMS + 1; i++)
        n += (size_t)snprintf(source + n, sizeof(source) - n, "%sint a%d", i ? ", " : "", i);
    snprintf(source + n, sizeof(source) - n, ") {}\n");
    o = compile_one(f, source, "k");
    assert_null(o.compiled);
    assert_int_equal(o.error.code, ERROR_LIMIT_EXCEEDED);
}

/* ---- sources that attack the compiler, and helpers that do not start ---- */

/* Unrolls for ever, and takes memory slowly. */
#define ENDLESS                                                                                                        \
    "constexpr unsigned long long f(unsigned long long n)\n"                                                           \
    "{ unsigned long long s = 0; for (unsigned long long i = 0; i < n; i++) s += i * i; return s; }\n"                 \
    "template <int N> struct X { static constexpr unsigned long long v = X<N - 1>::v + f(1000000 + N); };\n"           \
    "template <> struct X<0> { static constexpr unsigned long long v = 0; };\n"                                        \
    "extern \"C\" __global__ void k(unsigned long long *p) { *p = X<190>::v; }\n"

/* Doubles a text until the memory is used up; a type's name is as good as any. */
OPENING_TEST(test_memory)
{
    static const char source[] = "#define X1(a) a a a a a a a a a a\n#define X2(a) X1(X1(a))\n"
                                 "#define X4(a) X2(X2(a))\n#define X8(a) X4(X4(a))\n" K "(int *p) { X8(*p += 1;) }\n";
    struct fixture *f;
    struct outcome o;

#if defined(__SANITIZE_ADDRESS__)
    skip(); /* its allocator does not return when there is no memory */
#endif
    f = fixture_open_with((struct compiler_config){.memory_mib = 256});
    o = compile_one(f, source, "k");
    assert_failed(&o, ERROR_COMPILE_FAILED, "memory");
    assert_compiles(f, SIMPLE_KERNEL, "add");
}

OPENING_TEST(test_large_source)
{
    const size_t size = 10 << 20;
    char *source = malloc(COMPILER_MAX_INPUT + 2);
    struct fixture *f = fixture_open();
    struct outcome o;

    memset(source, '\n', COMPILER_MAX_INPUT + 1);
    source[COMPILER_MAX_INPUT + 1] = '\0';
    memcpy(source + size - strlen(SIMPLE_KERNEL), SIMPLE_KERNEL, sizeof(SIMPLE_KERNEL));
    assert_compiles(f, source, "add");
    source[size] = '\n';
    o = compile_one(f, source, "add");
    assert_failed(&o, ERROR_LIMIT_EXCEEDED, "");
    free(source);
}

/* A log of megabytes arrives cut off. */
OPENING_TEST(test_large_log)
{
    static const char source[] =
        "#define W1(n) int n##0 = ; int n##1 = ; int n##2 = ; int n##3 = ; int n##4 = ;\n"
        "#define W2(n) W1(n##0) W1(n##1) W1(n##2) W1(n##3) W1(n##4) W1(n##5) W1(n##6)\n"
        "#define W3(n) W2(n##0) W2(n##1) W2(n##2) W2(n##3) W2(n##4) W2(n##5) W2(n##6)\n"
        "#define W4(n) W3(n##0) W3(n##1) W3(n##2) W3(n##3) W3(n##4) W3(n##5) W3(n##6)\n" K "(int *p) { W4(v) }\n";
    const struct outcome o = compile_one(fixture_open(), source, "k");

    assert_failed(&o, ERROR_COMPILE_FAILED, "source");
    assert_in_range(strlen(o.log), 1000, COMPILED_MAX_LOG);
}

OPENING_TEST(test_idle)
{
    struct fixture *f = fixture_open_with((struct compiler_config){.keep_s = 1});

    for (int i = 0; i < 2; i++) {
        assert_compiles(f, SIMPLE_KERNEL, "add");
        assert_true(helpers() > 0);
        while (helpers()) {
            uv_run(&f->loop, UV_RUN_NOWAIT);
            usleep(10000);
        }
    }
}

OPENING_TEST(test_close_at_any_time)
{
    unsigned before = open_descriptors();

    for (int turns = 0; turns < 40; turns += 3) {
        struct fixture *f = fixture_open();
        struct outcome o;

        compile_start(f, ENDLESS, "k", &o);
        for (int i = 0; i < turns; i++) {
            uv_run(&f->loop, UV_RUN_NOWAIT);
            usleep(5000);
        }
        close_now(f);
        assert_true(o.done);
        assert_failed(&o, ERROR_CANCELLED, "");
        assert_int_equal(helpers(), 0);
        assert_int_equal(open_descriptors(), before);
    }
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* not even a zombie */
    assert_int_equal(errno, ECHILD);
}

OPENING_TEST(test_helper_does_not_start)
{
    static const struct compiler_config configs[] = {
        {.binary = "/bin/false"}, {.binary = "/nonexistent/program"}, {.user = "no-such-user-here"}};

    for (int i = 0; i < (getuid() ? 2 : 3); i++) {
        struct fixture *f = fixture_open_with(configs[i]);
        struct outcome o = compile_one(f, SIMPLE_KERNEL, "add");
        struct error e;

        assert_failed(&o, ERROR_UNSUPPORTED, "");
        assert_false(compiler_usable(f->compiler, &e));
        o = compile_one(f, SIMPLE_KERNEL, "add"); /* at once: not tried again yet */
        assert_failed(&o, ERROR_UNSUPPORTED, "");
    }
}

static int be_a_helper(int argc, char **argv)
{
    return compile_helper_wanted(argc, argv) ? compile_helper_main(argc, argv) : -1;
}

FIRST(be_a_helper)
