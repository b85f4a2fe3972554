/* Compiles that succeed, and sources at fault. */
#include <stdio.h>

#include "compile/cubin.h"
#include "compile/helper.h"
#include "helper_support.h"

OPENING_TEST(test_warnings)
{
    const struct outcome o =
        compile_one(fixture_open(), "extern \"C\" __global__ void k(int *p) { int unused; *p = 1; }\n", "k");

    assert_non_null(o.compiled);
    assert_non_null(strstr(o.compiled->log, "kernel.cu(1)"));
    assert_non_null(strstr(o.compiled->log, "unused"));
}

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
    struct fixture *f = fixture_open();
    struct outcome o = compile_one(f, source, "twice");

    assert_non_null(o.compiled);
    assert_string_equal(o.compiled->entries[0].lowered, "_Z5twicePfj");
    o = compile_one(f, source, "thrice");
    assert_failed(&o, ERROR_COMPILE_FAILED, "entry");
    assert_non_null(strstr(o.error.message, "twice(float*, unsigned int)"));
}

/* Without an #include, or with one that NVRTC cannot follow. */
OPENING_TEST(test_what_nvcc_has_unasked)
{
    static const char *const sources[] = {
        "extern \"C\" __global__ void k(uint *x, ushort y, ulong z, size_t n, uint32_t w) { *x = y + z + n + w; }\n",
        "#include <sys/types.h>\nextern \"C\" __global__ void k(uint *x) { *x = 1; }\n",
        "#include <algorithm>\n#include <cuda/barrier>\nextern \"C\" __global__ void k(uint *x)\n"
        "{ __shared__ cuda::barrier<cuda::thread_scope_block> b; if (!threadIdx.x) init(&b, 32); __syncthreads();\n"
        "  b.arrive_and_wait(); x[threadIdx.x] = std::min(1, 2); }\n",
        "template <class T> __device__ typename std::enable_if<sizeof(T) == 4, T>::type f(T a) { return a; }\n"
        "extern \"C\" __global__ void k(float *x) { *x = std::is_same<float, float>::value ? f(*x) : 0; }\n",
        "#include <utility>\n#include <cuda_fp16.h>\n#include <type_traits>\nextern \"C\" __global__ void k(half2 *x)\n"
        "{ half2 a = x[1]; std::pair<int, int> p{1, 2}; x[p.first] = std::move(a); }\n",
        "#include <cub/cub.cuh>\nextern \"C\" __global__ void k(float *x)\n"
        "{ typedef cub::BlockReduce<float, 128> Reduce; __shared__ typename Reduce::TempStorage t;\n"
        "  float s = Reduce(t).Sum(x[threadIdx.x]); if (!threadIdx.x) *x = s; }\n",
        "#include <curand_kernel.h>\nextern \"C\" __global__ void k(float *x)\n"
        "{ curandStatePhilox4_32_10_t s; curand_init(1, 2, 0, &s); *x = curand_uniform(&s) + curand_normal4(&s).x; }\n",
        "#include <curand.h>\n#include <curand_kernel.h>\nvoid host() { curandGenerator_t g; "
        "curandDestroyGenerator(g); }\n"
        "extern \"C\" __global__ void k(float *x) { curandState s; curand_init(1, 2, 3, &s); *x = curand_normal(&s); "
        "}\n",
        "#include <thrust/complex.h>\nextern \"C\" __global__ void k(thrust::complex<float> *x)\n"
        "{ x[0] = thrust::exp(x[1]) * thrust::conj(x[0]); }\n",
        "#include <thrust/device_vector.h>\n#include <thrust/sort.h>\nthrust::device_vector<int> v;\n"
        "void sort() { thrust::sort(v.begin(), v.end()); }\nextern \"C\" __global__ void k(int *x) { *x = 1; }\n",
        "#include <cufft.h>\nextern \"C\" __global__ void k(cufftComplex *x) { x->x = 1; }\n",
        "#include <functional>\n#include <optional>\ntemplate <class Op> __device__ float f(Op op) { return op(1.f, "
        "2.f); }\n"
        "extern \"C\" __global__ void k(float *x) { std::optional<float> o = f(std::plus<float>()); *x = *o; }\n",
        "#include <array>\n#include <tuple>\n#include <limits>\nextern \"C\" __global__ void k(float *x, "
        "std::array<int, 3> a)\n"
        "{ auto t = std::make_tuple(a[1], 2.f); *x = std::get<1>(t) + std::numeric_limits<float>::infinity(); }\n",
        "#include <algorithm>\n#include <cmath>\nextern \"C\" __global__ void k(float *x) { __shared__ int "
        "s[std::max(2, 4)];\n"
        "s[0] = std::clamp(3, 1, 2); *x = std::ldexp(x[1], s[0]) + std::lround(x[2]); }\n",
        "constexpr int cdiv(int a, int b) { return (a + b - 1) / b; }\nextern \"C\" __global__ void k(float *x, int "
        "n)\n"
        "{ __shared__ float s[cdiv(100, 4)]; s[0] = 1; x[0] = s[0] + cdiv(n, 4); }\n",
        "struct C { static constexpr int N = 4; static constexpr int size() { return N * 2; } int n; constexpr C(int "
        "a) : n(a) {}\n"
        "constexpr int get() const { return n; } };\nextern \"C\" __global__ void k(float *x, int n)\n"
        "{ __shared__ float s[C::size()]; s[0] = C(n).get(); x[0] = s[0] + C::N; }\n",
        "static const char *names[] = {\"a\", \"b\"};\nextern \"C\" __global__ void k(float *x) { *x = 1; }\n",
        "extern \"C\" __global__ void k(float *x, long *y) { x[0] = __FLT_MAX__ + __FLT_EPSILON__; y[0] = __INT_MAX__; "
        "}\n",
        "extern \"C\" __global__ void k(float *x)\n{ auto f = [=] __device__ (float a) { return a; }; x[0] = f(1); }\n",
        "#include <nvtx3/nvToolsExt.h>\n#include <nccl.h>\nvoid host() { nvtxRangePop(); ncclGroupEnd(); }\n"
        "extern \"C\" __global__ void k(int *x) { *x = 1; }\n",
    };
    struct fixture *f = fixture_open();

    for (size_t i = 0; i < sizeof(sources) / sizeof(sources[0]); i++)
        assert_compiles(f, sources[i], "k");
}

/* Host code that is kept where a kernel might use it, and that the compiler does not understand. */
OPENING_TEST(test_host_code_that_is_given_up)
{
    static const char kernel[] = "extern \"C\" __global__ void k(float *x) { *x = 1; }\n";
    static const char *const sources[] = {
        "#include <iostream>\nusing std::cout;\nusing std::endl;\nint main() { cout << endl; }\n",
        "#include <memory>\n#include <functional>\nusing F = std::function<void(float *, int)>;\n"
        "typedef std::unique_ptr<float[]> P;\ntemplate <class T> using Q = std::shared_ptr<T>;\n",
        "#include <string>\n#include <map>\nconst std::string name = \"x\";\n"
        "static const std::map<std::string, int> sizes = {{\"a\", 1}};\nconst auto f = [](int x) { return "
        "std::to_string(x); };\n",
        "#include <chrono>\n#include <filesystem>\nusing Clock = std::chrono::steady_clock;\nnamespace fs = "
        "std::filesystem;\n"
        "using namespace std::chrono;\n",
        "#include <stdexcept>\nstruct E : public std::runtime_error {\n  using "
        "std::runtime_error::runtime_error;\n};\n",
        "#include <thread>\n#include <mutex>\nstruct Log {\n  std::mutex m;\n  std::thread t;\n  void run() { "
        "t.join(); }\n};\n",
        "#include <torch/extension.h>\nusing torch::Tensor;\nTensor f(Tensor x) { return x; }\n",
        "const float root = std::sqrt(2.0f) * rand();\n",
    };
    struct fixture *f = fixture_open();

    for (size_t i = 0; i < sizeof(sources) / sizeof(sources[0]); i++) {
        char source[1024];

        snprintf(source, sizeof(source), "%s%s", sources[i], kernel);
        assert_compiles(f, source, "k");
    }
}

/* Each source has a fault that the log names with file and line. */
OPENING_TEST(test_faults)
{
    static const struct {
        const char *source, *entry, *reason, *in_log, *in_message;
    } cases[] = {
        {"\n\nextern \"C\" __global__ void k(int *p) { *p = ; }\n", "k", "source", "kernel.cu(3): error",
         "kernel.cu(3): error"},
        {"extern \"C\" __global__ void k(int *p) { *p = nothing; }\n", "k", "source", "\"nothing\" is undefined",
         "undefined"},
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
        {"using std::cout;\nextern \"C\" __global__ void k(float *x) { *x = MISSING; }\n", "k", "source", "",
         "MISSING"},
        /* A kernel that needs what was given up is told what was wrong with that. */
        {"const float c = missing(1);\nextern \"C\" __global__ void k(float *x) { *x = c; }\n", "k", "source", "",
         "missing"},
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

OPENING_TEST(test_unknown_architecture)
{
    static const char *const entries[] = {"add"}, *const archs[] = {"sm_7x", "sm_10", "compute_90", "", "nonsense"};
    struct compile_input input = {
        .name = "k.cu", .source = SIMPLE_KERNEL, .length = strlen(SIMPLE_KERNEL), .entries = entries, .n_entries = 1};
    struct fixture *f = fixture_open();

    for (size_t i = 0; i < sizeof(archs) / sizeof(archs[0]); i++) {
        struct outcome o;

        input.arch = archs[i];
        compile_start_input(f, &input, &o);
        compile_wait(f, &o);
        assert_failed(&o, ERROR_INVALID_ARGUMENT, "source");
        assert_non_null(strstr(o.error.message, i == 2 ? "compute_90" : "arch"));
    }
}

static void best_effort(struct compiler_config *config)
{
    config->sandbox = COMPILER_SANDBOX_BEST_EFFORT;
}

static void off(struct compiler_config *config)
{
    config->sandbox = COMPILER_SANDBOX_OFF;
}

OPENING_TEST(test_weaker_sandboxes)
{
    void (*const changes[])(struct compiler_config *) = {best_effort, off};

    for (int i = 0; i < 2; i++) {
        struct fixture *f = fixture_open_with(changes[i]);
        const struct outcome o = compile_one(f, "#include \"/etc/passwd\"\n" SIMPLE_KERNEL, "add");

        assert_failed(&o, ERROR_COMPILE_FAILED, "source");
        assert_int_equal(changes[i] == off, strstr(o.log, "root:") != NULL); /* what switching it off means */
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

static void alone(struct compiler_config *config)
{
    config->alone = true;
}

/* Where the helper must not be forked, each source gets one of its own. */
OPENING_TEST(test_alone)
{
    struct fixture *f = fixture_open_with(alone);

    for (int i = 0; i < 3; i++)
        assert_compiles(f, SIMPLE_KERNEL, "add");
}
