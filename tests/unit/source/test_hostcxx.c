/* What becomes of a CUDA source for a compiler of the host. */
#include "source/hostcxx.h"
#include "tests/support/unit.h"

#include <time.h>

static void becomes(const char *source, const char *expected)
{
    size_t length = 0;
    char *made = hostcxx_of(source, strlen(source), &length);

    assert_non_null(made);
    assert_int_equal(strlen(made), length);
    assert_string_equal(made, expected);
    free(made);
}

#define STUB(names, arguments) " ::kops::kops_stub(::kops::kops_entry(__PRETTY_FUNCTION__, {" names "})" arguments ");"

TEST(text_without_cuda_is_unchanged)
{
    becomes("", "");
    becomes("int f(int a) { return a << 3 >> 1; } // __global__ <<<\n",
            "int f(int a) { return a << 3 >> 1; } // __global__ <<<\n");
    becomes("const char *s = \"<<<>>>(\"; auto r = R\"(__device__ int f();)\";",
            "const char *s = \"<<<>>>(\"; auto r = R\"(__device__ int f();)\";");
}

TEST(kernels_record_their_arguments)
{
    becomes("__global__ void k(float *y, int n = 3)\n{\n    y[0] = n;\n}\nint x;",
            "__global__ void k(float *y, int n = 3)\n{" STUB("", ", y, n") "\n     \n}\nint x;");
    becomes("__global__ void k() {}", "__global__ void k() {" STUB("", "") "}");
    becomes("extern \"C\" __global__ void k(void) { f(); }",
            "extern \"C\" __global__ void k(void) {" STUB("", "") "   }");
    becomes("__global__ void k(const float *, int, const S, float (*f)(float), N::T = 3, unsigned a[4]) {}",
            "__global__ void k(const float * kops_argument_0, int kops_argument_1, const S kops_argument_2, float "
            "(*f)(float), "
            "N::T kops_argument_4 = 3, unsigned a[4]) {" STUB(
                "", ", kops_argument_0, kops_argument_1, kops_argument_2, f, kops_argument_4, a") "}");
    becomes("__global__ void k(std::pair<int, int> p);", "__global__ void k(std::pair<int, int> p);");
    becomes("__global__ void __launch_bounds__(64, 2) k(int a) {}",
            "__global__ void __launch_bounds__(64, 2) k(int a) {" STUB("", ", a") "}");
}

TEST(instantiations_have_names)
{
    becomes("template <typename T, int N = 2, class... A, typename = void> __global__ void k(T *y, A... a) {}",
            "template <typename T, int N = 2, class... A, typename = void> __global__ void k(T *y, A... a) {" STUB(
                "::kops::kops_name_of<T>(), ::kops::kops_name_of(N), ::kops::kops_name_of<A>()..., ", ", y, a...") "}");
    becomes("template <std::pair<int, int> P> __global__ void k() {}",
            "template <std::pair<int, int> P> __global__ void k() {" STUB("::kops::kops_name_of(P), ", "") "}");
    becomes("template <> __global__ void k<unsigned char, N<3>>(unsigned char *y) {}",
            "template <> __global__ void k<unsigned char, N<3>>(unsigned char *y) {" STUB("\"unsigned char,N<3>\"",
                                                                                          ", y") "}");
}

TEST(functions_for_the_device_go)
{
    becomes("template <class T>\nstatic __device__ T f(T x)\n{ return x; }\nint g();", "\n\n \nint g();");
    becomes("__device__ float f(float);\nint g();", " \nint g();");
    becomes("struct S {\npublic:\n  __device__ S(int a) : x(a), y{a} { x++; }\n  __device__ int operator()(int i) "
            "const { return i; }\n  int x, y;\n};",
            "struct S {\npublic:\n   \n   \n  int x, y;\n};");
    becomes("__host__ __device__ int f() { return 1; }", "__host__ __device__ int f() { return 1; }");
    becomes("__device__ constexpr int f() { return 1; }", "__device__ constexpr int f() { return 1; }");
    becomes("__device__ int a[3], b = f(2); __constant__ float c[4];",
            "__device__ int a[3], b = f(2); __constant__ float c[4];");
    becomes("g([=] __device__ (int i) { return i; });", "g([=] __device__ (int i) { return i; });");
}

TEST(directives_in_a_body_stay)
{
    becomes("__device__ void f() {\n#if A\n g();\n#else\n h();\n#endif\n}\n", "\n#if A\n\n#else\n\n#endif\n \n");
    becomes("__global__ void k() {\n#pragma unroll\n  f(); // a\n}\n",
            "__global__ void k() {" STUB("", "") "\n\n  // a\n}\n");
}

TEST(launches_become_calls)
{
    becomes("k<<<g, b>>>(x, 1);", "k(x, 1), ::kops::kops_launch(g, b);");
    becomes("n::k<B, float> <<< dim3(1,\n 2), b, 0, s >>>\n (x);",
            "n::k<B, float> \n (x), ::kops::kops_launch( dim3(1,\n 2), b, 0, s );");
    becomes("f([&] { k<<<1, a < b ? 2 : 3>>>(x[i >> 1]); });",
            "f([&] { k(x[i >> 1]), ::kops::kops_launch(1, a < b ? 2 : 3); });");
    becomes("k<<<1, [&] { m<<<2, 3>>>(); return 4; }()>>>(y);",
            "k(y), ::kops::kops_launch(1, [&] { m(), ::kops::kops_launch(2, 3); return 4; }());");
    becomes("k<<<1, 2;", "k<<<1, 2;");
    becomes("k<<<1, 2>>>", "k<<<1, 2>>>");
}

TEST(macros_are_rewritten)
{
    becomes("#define RUN(B) \\\n    k<B><<<1, B>>>(x); \\\n    check()\n",
            "#define RUN(B) \\\n    k<B>(x), ::kops::kops_launch(1, B); \\\n    check()\n");
    becomes("#define OP(n) \\\n__device__ float n##_(float x) \\\n{ return x; } \\\nint n();\n",
            "#define OP(n) \\\n\\\n  \\\nint n();\n");
    becomes(
        "#define DEV static __device__ inline\n#define K(n) __global__ __launch_bounds__(n)\nDEV int f() { return 1; "
        "}\nK(3) void k() {}\n",
        "#define DEV static __device__ inline\n#define K(n) __global__ __launch_bounds__(n)\n \nK(3) void k() {" STUB(
            "", "") "}\n");
    becomes("#define HD __host__ __device__\nHD int f() { return 1; }\n",
            "#define HD __host__ __device__\nHD int f() { return 1; }\n");
}

/* Each piece, repeated, takes time in proportion to the length. */
TEST(any_text_is_rewritten_in_bounded_time)
{
    static const char *const pieces[] = {"<<<",
                                         "<<<(",
                                         "__device__ ",
                                         "__device__ f(",
                                         "__global__ k(",
                                         "template <",
                                         "__global__ void k(a<",
                                         "k<<<k<<<1>>>(",
                                         "#define A __device__\n",
                                         "k<<<[&]{",
                                         "__device__ operator",
                                         "__global__ k<a<(",
                                         "{",
                                         ")",
                                         "__device__ }",
                                         "R\"(",
                                         "__global__ void k(int",
                                         "__global__ void k(){",
                                         "template<class A>__global__ void k(A){}"};
    enum { LENGTH = 1 << 20 };
    char *text = malloc(LENGTH);
    const clock_t begin = clock();

    for (size_t i = 0; i < sizeof(pieces) / sizeof(pieces[0]); i++) {
        size_t length = strlen(pieces[i]), made_length = 0;
        char *made;

        for (size_t at = 0; at < LENGTH; at++)
            text[at] = pieces[i][at % length];
        made = hostcxx_of(text, LENGTH, &made_length);
        assert_non_null(made);
        assert_true(made_length < 16 * (size_t)LENGTH);
        free(made);
    }
    free(text);
    assert_true((clock() - begin) / CLOCKS_PER_SEC < 20);
}
