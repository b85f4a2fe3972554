// Headers against a table that records: what reaches it, what a wrapper sees, numbers. Prints each failure.
#include <torch/extension.h>

static int failures;
static std::string calls; // of the table, with their arguments
static int64_t released, retained;

#define EXPECT(CONDITION)                                                                                              \
    do {                                                                                                               \
        if (!(CONDITION)) {                                                                                            \
            printf("line %d: %s\n", __LINE__, #CONDITION);                                                             \
            failures++;                                                                                                \
        }                                                                                                              \
    } while (0)
#define EXPECT_ERROR(EXPRESSION, TEXT)                                                                                 \
    do {                                                                                                               \
        std::string text = "no error";                                                                                 \
        try {                                                                                                          \
            (void)(EXPRESSION);                                                                                        \
        } catch (const std::exception &error) {                                                                        \
            text = error.what();                                                                                       \
        }                                                                                                              \
        if (text != (TEXT)) {                                                                                          \
            printf("line %d: %s\n", __LINE__, text.c_str());                                                           \
            failures++;                                                                                                \
        }                                                                                                              \
    } while (0)

static float elements[24];
static KopsTensor described(int64_t id, std::vector<int64_t> sizes, std::vector<int64_t> strides)
{
    KopsTensor tensor{};
    tensor.id = id, tensor.dtype = (int)at::kFloat, tensor.device_index = -1, tensor.ndim = (int)sizes.size(),
    tensor.data = (uint64_t)elements;
    std::copy(sizes.begin(), sizes.end(), tensor.sizes);
    std::copy(strides.begin(), strides.end(), tensor.strides);
    return tensor;
}
static std::string text_of(const KopsValue &value)
{
    std::string text;
    switch (value.tag) {
    case KOPS_IS_NONE:
        return "None";
    case KOPS_IS_TENSOR:
        return "t" + std::to_string(value.i);
    case KOPS_IS_FLOAT:
        return c10::str(value.d);
    case KOPS_IS_STRING:
        return std::string((const char *)value.p, (size_t)value.n);
    case KOPS_IS_INTS:
    case KOPS_IS_TENSORS:
    case KOPS_IS_SLICE:
        for (int i = 0; i < value.n; i++)
            text += (i ? "," : "") + std::to_string(((const int64_t *)value.p)[i]);
        return "[" + text + "]";
    case KOPS_IS_OPTIONS:
        return c10::str("options ", value.i & 255, " ", value.i >> 8 & 255, " ", value.i >> 16 & 255, " ", value.n);
    default:
        return std::to_string(value.i);
    }
}
static int op(const char *name, const KopsValue *args, int n, KopsTensor *out, int *nout, KopsValue *scalar)
{
    if (!strcmp(name, "atan2"))
        return 1;
    calls += std::string(name) + "(";
    for (int i = 0; i < n; i++)
        calls += (i ? ", " : "") + text_of(args[i]);
    calls += ") ";
    bool pair = !strcmp(name, "max") || !strcmp(name, "topk");
    *nout = 0;
    if (!strcmp(name, "grad"))
        return 0;
    if (!strcmp(name, "grad_mode")) {
        scalar->tag = KOPS_IS_BOOL, scalar->i = 1;
        return 0;
    }
    if (!strcmp(name, "text")) {
        scalar->tag = KOPS_IS_STRING, scalar->n = 2, scalar->p = "ab";
        return 0;
    }
    if (!strcmp(name, "item")) {
        scalar->tag = KOPS_IS_FLOAT, scalar->d = 2.5;
        return 0;
    }
    if (!strcmp(name, "unbind")) {
        static KopsTensor many[100];
        for (*nout = 0; *nout < 100; ++*nout)
            many[*nout] = described(100 + *nout, {3}, {1});
        scalar->p = many;
        return 0;
    }
    for (*nout = 0; *nout < (pair ? 2 : 1); ++*nout)
        out[*nout] = described(100 + *nout, {3, 2}, {2, 1});
    return 0;
}
static void retain(int64_t)
{
    retained++;
}
static int lock(int)
{
    return 0;
}
static void release(int64_t)
{
    released++;
}
static int launch(const char *kernel, const uint32_t *dims, uint64_t shared, void *, const KopsArg *args, int n)
{
    calls += c10::str(std::string(kernel).find("scale") != std::string::npos ? "scale" : kernel, "<", dims[0], ",",
                      dims[1], ",", dims[3], ",", shared, ">(");
    for (int i = 0; i < n; i++)
        calls += c10::str((char)args[i].kind, args[i].size, i + 1 < n ? " " : ") ");
    return 0;
}
static int runtime(const char *name, const KopsValue *args, int n, int64_t *out)
{
    calls += std::string(name) + "(";
    for (int i = 0; i < n; i++)
        calls += (i ? ", " : "") +
                 (args[i].tag == KOPS_IS_STRING && strchr((const char *)args[i].p, '(') ? "kernel" : text_of(args[i]));
    calls += ") ";
    *out = strcmp(name, "library") ? 64 : 0;
    return 0;
}
static const char *error()
{
    return "refused";
}
static bool called(const char *expected)
{
    std::string got = calls.substr(0, calls.find_last_not_of(' ') + 1);
    calls.clear();
    if (got != expected)
        printf("called %s\n", got.c_str());
    return got == expected;
}

struct Shape {
    int64_t rows, columns;
};
template <typename T> void scale(T *out, Shape shape, float factor = 1.5f, bool flag = true)
{
    kops::kops_stub(__PRETTY_FUNCTION__, out, shape, factor, flag);
}

std::vector<at::Tensor> two(at::Tensor x, double alpha, c10::optional<at::Tensor> bias, const std::string &mode, int n)
{
    TORCH_CHECK(n != 3, "n is ", n);
    TORCH_CHECK_INDEX(n != 4, "index");
    return {x, bias ? *bias : x + alpha, mode == "undefined" ? at::Tensor() : x};
}
std::tuple<double, std::string, std::vector<int64_t>> plain(bool flag)
{
    return {flag ? 1.5 : 2.5, "text", {1, 2, 3}};
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m)
{
    m.def("two", &two, "Doc.", py::arg("x"), py::arg("alpha") = 2.0, py::arg("bias") = py::none(),
          py::arg("mode") = "mean", py::arg("n") = 1);
    m.def("plain", plain);
    m.def("pointer", [](const float *x) { return *x * 2; });
    m.def("lists", [](std::vector<std::optional<at::Tensor>> list, std::tuple<int, double> pair, bool flag) {
        return std::vector<bool>{list[0].has_value(), list[1].has_value(), flag && std::get<1>(pair) == 2};
    });
    m.def("thrown", [](int kind) {
        if (kind == 0)
            throw std::domain_error("no");
        if (kind == 1)
            throw std::overflow_error("no");
        throw std::bad_alloc();
    });
}
TORCH_LIBRARY(lib, m)
{
    m.def("f(Tensor x) -> Tensor");
}
TORCH_LIBRARY_IMPL(lib, CPU, m)
{
    m.impl("f", [](const at::Tensor &x) { return x; });
    m.impl("g", [](at::Tensor x) { return x; });
}

static void tensors()
{
    at::Tensor x(described(1, {2, 3, 4}, {12, 4, 1})), t(described(2, {4, 3}, {1, 4}));
    EXPECT(x.dim() == 3 && x.size(-1) == 4 && x.stride(0) == 12 && x.numel() == 24 && x.nbytes() == 96);
    EXPECT(x.is_contiguous() && !t.is_contiguous() && x.is_cpu() && !x.is_cuda());
    EXPECT(!at::Tensor(described(3, {0, 3, 2, 2}, {12, 4, 2, 1})).is_contiguous(at::MemoryFormat::ChannelsLast));
    EXPECT(at::Tensor(described(3, {2, 3, 4, 5}, {60, 1, 15, 3})).is_contiguous(at::MemoryFormat::ChannelsLast));
    EXPECT_ERROR(x.size(3), "Dimension out of range (expected to be in range of [-3, 2], but got 3)");
    EXPECT_ERROR(x.data_ptr<int>(), "expected scalar type Int but found Float");
    EXPECT_ERROR((x.packed_accessor32<float, 2>()), "TensorAccessor expected 2 dims but tensor has 3");
    at::Tensor none;
    EXPECT(!none.is_cuda() && none.dim() == 1 && none.numel() == 0 && none.scalar_type() == at::ScalarType::Undefined);
    EXPECT(none.is_contiguous() && !none.contiguous().defined());
    EXPECT_ERROR(none.device(), "tensor does not have a device");
    EXPECT_ERROR(none.data_ptr(), "Cannot access data pointer of Tensor that doesn't have storage");
    EXPECT_ERROR(none.data_ptr<float>(), "expected scalar type Float but found UNKNOWN_SCALAR");
    for (int i = 0; i < 24; i++)
        elements[i] = (float)i;
    EXPECT((x.accessor<float, 3>()[1][2][3] == 23) && (t.accessor<float, 2>()[3][1] == 7));
    auto packed = t.packed_accessor32<float, 2, at::RestrictPtrTraits>();
    EXPECT(sizeof(packed) == 24 && packed.stride(1) == 4 && packed.data() == elements && packed[2][1] == 6);
    EXPECT(c10::str(x.sizes(), x.dtype(), x.device(), x.scalar_type()) == "[2, 3, 4]floatcpuFloat");
    at::Tensor same = x;
    EXPECT(same.is_same(x) && x.use_count() == 2);

    calls.clear();
    at::Tensor y = x + t * 2;
    EXPECT(called("mul(t2, 2) add alpha(t1, t100, 1)"));
    EXPECT_ERROR(x.atan2(t), "refused");
    y = x.add(t, 3);
    EXPECT(called("add alpha(t1, t2, 3)"));
    y = torch::empty({2, (int)x.size(1)}, x.options().dtype(torch::kHalf));
    EXPECT(called("empty options memory_format([2,3], options 5 0 255 0, None)"));
    y = torch::zeros(5, torch::kCUDA);
    EXPECT(called("zeros options([5], options 44 1 255 0)"));
    y = x.sum({0, -1}, true).view({-1});
    EXPECT(called("sum dtype(t1, [0,-1], 1, None) view(t100, [-1])"));
    y = x.var(0);
    EXPECT(called("var correction keepdim(t1, [0], None, 0)"));
    y = torch::std(x, 1);
    EXPECT(called("std correction keepdim(t1, [1], None, 0)"));
    y = x.var(false);
    EXPECT(called("var(t1, 0)"));
    y = torch::cat({x, t}, 1);
    EXPECT(called("cat([1,2], 1)"));
    auto [values, places] = x.max(1);
    EXPECT(called("max(t1, 1, 0)") && values.size(0) == 3 && places.described().id == 101);
    y = x.index({torch::indexing::Slice(1, torch::indexing::None), "...", t, 0});
    EXPECT(called("index(t1, [1,-9223372036854775808,-9223372036854775808], ..., t2, 0)"));
    x.index_put_({t, 0}, 2);
    EXPECT(called("index_put_(t1, 2, 0, t2, 0)"));
    EXPECT(x.index_put_({t, t}, t, true).is_same(x) && called("index_put_(t1, t2, 1, t2, t2)"));
    y = x.index(c10::List<std::optional<at::Tensor>>{std::nullopt, t});
    EXPECT(called("index(t1, None, t2)"));
    y = x.contiguous();
    EXPECT(y.is_same(x) && called(""));
    y = t.contiguous();
    EXPECT(called("contiguous memory_format(t2, 0)"));
    EXPECT(c10::str(x) == "ab" && called("text(t1)"));
    {
        at::NoGradGuard guard;
    }
    EXPECT(called("grad_mode(0) grad_mode(1)"));
    {
        std::vector<at::Tensor> rows = x.unbind(0); // more than op() has room for
        EXPECT(rows.size() == 100 && rows[99].size(0) == 3 && called("unbind(t1, 0)"));
    }
    EXPECT(!x.grad().defined() && called("grad(t1)"));
    EXPECT(x.item<int>() == 2 && called("item(t1)"));
    at::add_out(y, x, t);
    EXPECT(called("add alpha out(t1, t2, 1, t100)"));
    y = 1 - x;
    EXPECT(called(
        "empty_like options memory_format(t1, options 44 255 255 0, None) fill_(t100, 1) sub_ alpha(t100, t1, 1)"));
    y = 2 * x;
    EXPECT(called("mul(t1, 2)"));
    y = torch::conv2d(x, t, {}, 2);
    EXPECT(called("conv2d(t1, t2, None, [2], [0], [1], 1)"));
    y = torch::tensor({{1.0, 2.0}, {3.0, 4.0}});
    EXPECT(calls.find("tensor sizes options(") == 0 && calls.find(", [2,2], options 6") != std::string::npos);
    calls.clear();
    x[1] = t;
    x[0][1] = 2.0;
    EXPECT(called("select(t1, 0, 1) copy_(t100, t2, 0) select(t1, 0, 0) select(t100, 0, 1) fill_(t100, 2)"));
    t.transpose_(0, 1);
    EXPECT(t.size(0) == 3 && t.stride(0) == 2 && t.described().id == 2);
    calls.clear();
}

// Texts, errors and conversions of torch's small types are torch's own.
static void types()
{
    EXPECT(c10::str(c10::scalarTypeToTypeMeta(at::kShort), ' ', c10::scalarTypeToTypeMeta(at::kComplexHalf), ' ',
                    at::TypeMeta(), ' ', at::ScalarType::Undefined) ==
           "short int c10::complex<c10::Half> nullptr (uninitialized) UNKNOWN_SCALAR");
    EXPECT(c10::str(at::MemoryFormat::ChannelsLast, at::kStrided) == "ChannelsLastStrided");
    EXPECT(c10::str(at::dtype(at::kHalf).device("cuda:1").memory_format(at::MemoryFormat::Preserve)) ==
           "TensorOptions(dtype=c10::Half, device=cuda:1, layout=Strided (default), requires_grad=false (default), "
           "pinned_memory=false (default), memory_format=Preserve)");
    EXPECT(c10::str(at::requires_grad().layout(at::kStrided)) ==
           "TensorOptions(dtype=float (default), device=cpu (default), layout=Strided, requires_grad=true, "
           "pinned_memory=false (default), memory_format=(nullopt))");
    EXPECT(c10::str(std::vector<int64_t>{1, 2}, "|", at::Scalar(true), at::Scalar(c10::complex<double>(1, 2))) ==
           "1 2|true(1,2)");

    EXPECT(at::Device("cuda:12") == at::Device(at::kCUDA, 12) && at::Device("cpu").index() == -1);
    EXPECT_ERROR(at::Device(""), "Device string must not be empty");
    for (const char *wrong : {"cuda:", "cuda:-1", "cuda:01", "cuda:x", "cuda:1:2"})
        EXPECT_ERROR(at::Device(wrong), c10::str("Invalid device string: '", wrong, "'"));
    EXPECT_ERROR(at::Device("gpu"), "Expected one of cpu, cuda, meta device type at start of device string: gpu");

    EXPECT(at::Scalar(2.9).to<int>() == 2 && at::Scalar(-1).to<uint8_t>() == 255 && at::Scalar(0.5).toBool() &&
           std::isinf(at::Scalar(INFINITY).toHalf()) && std::isnan(at::Scalar(NAN).toFloat()));
    EXPECT_ERROR(at::Scalar(300).to<uint8_t>(), "value cannot be converted to type uint8_t without overflow");
    EXPECT_ERROR(at::Scalar(3e9).toInt(), "value cannot be converted to type int without overflow");
    EXPECT_ERROR(at::Scalar(NAN).toLong(), "value cannot be converted to type int64_t without overflow");
    EXPECT_ERROR(at::Scalar(1e39).toFloat(), "value cannot be converted to type float without overflow");
    EXPECT_ERROR(at::Scalar(70000).toHalf(), "value cannot be converted to type ::c10::Half without overflow");
    EXPECT_ERROR(at::Scalar(UINT64_MAX), "value cannot be converted to type int64_t without overflow");
    EXPECT_ERROR(at::Scalar(c10::complex<double>(1, 2)).toDouble(),
                 "value cannot be converted to type double without overflow");

    auto kind = [](std::vector<int64_t> sizes, std::vector<int64_t> strides) {
        at::Tensor x(described(1, sizes, strides));
        return c10::str(x.suggest_memory_format(), x.is_non_overlapping_and_dense());
    };
    EXPECT(kind({2, 3, 4, 5}, {60, 1, 15, 3}) == "ChannelsLast1" &&
           kind({2, 1, 4, 5}, {20, 20, 5, 1}) == "Contiguous1");
    EXPECT(kind({2, 3, 1, 1}, {3, 1, 3, 3}) == "ChannelsLast1" && kind({3, 4, 5}, {5, 15, 1}) == "Contiguous1");
    EXPECT(kind({4, 4}, {8, 2}) == "Contiguous0" && kind({1, 3, 4, 5, 6}, {360, 1, 90, 18, 3}) == "ChannelsLast3d1");

    calls.clear();
    at::Tensor x = torch::tensor({1, 2});
    EXPECT(called("tensor sizes options([1,2], [2], options 4 255 255 0)"));
    x = at::tensor({1, 2});
    EXPECT(called("tensor sizes options([1,2], [2], options 3 255 255 0)"));
    x = torch::tensor((uint8_t)3);
    EXPECT(called("tensor sizes options([3], [], options 0 255 255 0)"));
    x = at::tensor(3);
    EXPECT(called("tensor sizes options([3], [1], options 3 255 255 0)"));
    x = torch::zeros({1}, "cuda:1");
    EXPECT(called("zeros options([1], options 44 1 1 0)"));
}

static void dispatch()
{
    at::Tensor x(described(1, {2}, {1}));
    EXPECT(AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "f", [&] { return sizeof(scalar_t); }) == 4);
    EXPECT_ERROR(AT_DISPATCH_INTEGRAL_TYPES(x.scalar_type(), "f", [&] { return sizeof(scalar_t); }),
                 "\"f\" not implemented for 'Float'");
    size_t size = 0;
    AT_DISPATCH_V2(at::kBFloat16, "v2", AT_WRAP([&] { size = std::is_same_v<scalar_t, at::BFloat16>; }), at::kHalf,
                   AT_EXPAND(AT_ALL_TYPES), at::kBFloat16);
    EXPECT(size == 1);
    EXPECT_ERROR([] { TORCH_CHECK(1 > 2); }(),
                 "Expected 1 > 2 to be true, but got false.  (Could this error message be improved?  If so, "
                 "please report an enhancement request to PyTorch.)");
    std::string told;
    try {
        AT_ASSERTM(1 > 2, "no");
    } catch (const c10::Error &error) {
        told = error.msg();
    }
    EXPECT(told.find("1 > 2 INTERNAL ASSERT FAILED at ") == 0 && told.find("PyTorch. no") != std::string::npos);
    EXPECT((!std::is_base_of_v<std::runtime_error, c10::Error>));
    EXPECT_ERROR([] { TORCH_CHECK_LT(2, 1); }(), "Check failed: 2 < 1 (2 vs. 1). ");
    EXPECT_ERROR([] { C10_CUDA_CHECK(cudaErrorInvalidValue); }(), "CUDA error: invalid argument");
}

static void launches()
{
    calls.clear();
    int n = 10;
    scale<float>(elements, {n, (1 - n) / 4}), kops::kops_launch((n + 3) / 4, dim3(32, 2), 16);
    EXPECT(called("scale<3,1,32,16>(p8 s16 f4 u1)"));
    EXPECT_ERROR(kops::kops_launch(1, 1), "a launch without a kernel");
    cudaFuncSetAttribute(scale<float>, cudaFuncAttributeMaxDynamicSharedMemorySize, 4096);
    EXPECT(called("cudaFuncSetAttribute(kernel, 8, 4096)"));
    float *pointer = elements;
    Shape shape = {1, 2};
    float factor = 3;
    bool flag = false;
    void *arguments[] = {&pointer, &shape, &factor, &flag};
    cudaLaunchKernel((void *)scale<float>, 2, 64, arguments);
    EXPECT(called("scale<2,1,64,0>(p8 s16 f4 u1)"));
    cudaMemcpyToSymbol(elements, pointer, 8);
    EXPECT(calls.find("cudaMemcpyToSymbol(elements, ") == 0);
    calls.clear();
    cublasHandle_t handle = nullptr;
    EXPECT_ERROR(cublasCreate(&handle), "cublasCreate_v2: the library cublas is not available here");
    EXPECT(called("library(cublas, cublasCreate_v2)"));
}

static void numbers()
{
    auto half = [](double x) { return kops::to_bits(x, kops::HALF); };
    EXPECT(half(1) == 0x3c00 && half(-2) == 0xc000 && half(65504) == 0x7bff && half(65519.99) == 0x7bff &&
           half(65520) == 0x7c00);
    EXPECT(half(1 + 1 / 2048.0) == 0x3c00 && half(1 + 3 / 2048.0) == 0x3c02 && half(-0.0) == 0x8000 &&
           half(1e300) == 0x7c00);
    EXPECT(half(std::ldexp(1, -24)) == 1 && half(std::ldexp(1, -25)) == 0 && half(std::ldexp(1.5, -24)) == 2);
    EXPECT(half(std::ldexp(1023.75, -24)) == 0x400 && half(NAN) == 0x7fff && half(-INFINITY) == 0xfc00);
    EXPECT(kops::to_bits(3.4e38, kops::BFLOAT16) == 0x7f80 && kops::to_bits(1.00390625, kops::BFLOAT16) == 0x3f80);
    EXPECT(kops::to_bits(464, kops::E4M3) == 0x7e && kops::to_bits(465, kops::E4M3) == 0x7f &&
           kops::to_bits(1e9, kops::E4M3, true) == 0x7e);
    EXPECT(kops::to_bits(61439, kops::E5M2) == 0x7b && kops::to_bits(61440, kops::E5M2) == 0x7c);
    int wrong = 0;
    for (kops::Format format : {kops::HALF, kops::BFLOAT16, kops::E4M3, kops::E5M2})
        for (uint32_t bits = 0; bits < 2 * format.sign(); bits++) {
            double value = kops::from_bits(bits, format);
            wrong +=
                std::isnan(value) ? kops::to_bits(value, format) != format.nan : kops::to_bits(value, format) != bits;
        }
    EXPECT(wrong == 0);
    EXPECT(at::Half(0.1f).x == 0x2e66 && (float)(at::Half(1.5f) + 1) == 2.5f && sizeof(at::Half(1) * 2.0) == 8);
    EXPECT((float)(at::Half(1) + 2049) == 2048 && (float)(257 + at::BFloat16(1)) == 256); // the int is rounded first
    EXPECT(
        (std::is_same_v<at::acc_type<at::Half, false>, float>)&&(std::is_same_v<at::acc_type<float, false>, double>)&&(
            std::is_same_v<at::acc_type<float, true>,
                           float>)&&(std::is_same_v<at::acc_type<int, true>,
                                                    int64_t>)&&(std::is_same_v<at::acc_type<bool, true>, bool>));
    EXPECT((std::is_same_v<at::acc_type<c10::complex<at::Half>, true>, c10::complex<float>>)&&(
        std::is_same_v<at::opmath_type<at::BFloat16>, float>)&&(std::is_same_v<at::opmath_type<short>, short>));
    EXPECT((c10::complex<float>(1, 2) * c10::complex<float>(3, 4) == c10::complex<float>(-5, 10)));
    EXPECT(std::numeric_limits<at::Half>::max() == 65504.f &&
           (float)std::numeric_limits<at::BFloat16>::lowest() < -3e38f);
    EXPECT(alignof(float4) == 16 && sizeof(float3) == 12 && alignof(double2) == 16 && sizeof(char4) == 4 &&
           alignof(__half2) == 4);
    EXPECT(sizeof(curandState) == 48 && sizeof(curandStatePhilox4_32_10_t) == 64);
}

static void binding()
{
    EXPECT(kops_count() == 8 && std::string(kops_def_name(0)) == "two" && std::string(kops_def_doc(0)) == "Doc.");
    EXPECT(std::string(kops_def_name(5)) == "lib::f" && std::string(kops_def_signature(5)) == "f(Tensor x) -> Tensor");
    EXPECT(std::string(kops_def_name(6)) == "lib::f@CPU");
    KopsValue value;
    EXPECT(kops_def_arguments(0) == 5 && std::string(kops_def_argument(0, 0, &value)) == "x" && value.tag == -1);
    EXPECT(std::string(kops_def_argument(0, 1, &value)) == "alpha" && value.tag == KOPS_IS_FLOAT && value.d == 2);
    EXPECT(kops_def_argument(0, 2, &value) && value.tag == KOPS_IS_NONE);
    EXPECT(kops_def_argument(0, 3, &value) && value.tag == KOPS_IS_STRING && text_of(value) == "mean");
    EXPECT(!kops_def_argument(1, 0, &value) && value.tag == -1);

    KopsTensor x = described(7, {2}, {1}), *out;
    KopsTensor *given[] = {&x};
    KopsValue args[5] = {{KOPS_IS_TENSOR, 0, 0, 0, nullptr},
                         {KOPS_IS_INT, 0, 3, 0, nullptr},
                         {},
                         {KOPS_IS_STRING, 9, 0, 0, "undefined"},
                         {KOPS_IS_INT, 0, 1, 0, nullptr}};
    int count;
    released = retained = 0;
    calls.clear();
    EXPECT(!kops_call(0, args, given, &out, &count, &value) && count == 2 && value.tag == KOPS_IS_TUPLE && value.n == 3);
    EXPECT(called("add alpha(t7, 3, 1)") && retained == 2 && released == 2); // the argument and the handle of the sum
    auto items = (const KopsValue *)value.p;
    EXPECT(items[0].tag == KOPS_IS_TENSOR && items[1].i == 1 && out[1].id == 100 && items[2].tag == KOPS_IS_NONE);
    args[4].i = 3;
    EXPECT(std::string(kops_call(0, args, given, &out, &count, &value)) == "n is 3" &&
           std::string(kops_error_type()) == "RuntimeError");
    args[4].i = 4;
    EXPECT(kops_call(0, args, given, &out, &count, &value) && std::string(kops_error_type()) == "IndexError" &&
           count == 0);
    args[4].i = 1LL << 40;
    EXPECT(kops_call(0, args, given, &out, &count, &value) && std::string(kops_error_type()) == "NoMatch");
    KopsValue number = {KOPS_IS_FLOAT, 0, 0, 1.5, nullptr};
    EXPECT(!kops_call(2, &number, given, &out, &count, &value) && value.tag == KOPS_IS_FLOAT && value.d == 3);
    int64_t tensors[] = {-1, 0}, numbers[] = {1, 2};
    KopsValue lists[] = {{KOPS_IS_TENSORS, 2, 0, 0, tensors}, {KOPS_IS_INTS, 2, 0, 0, numbers}, {KOPS_IS_INT, 0, 1, 0, nullptr}};
    EXPECT(!kops_call(3, lists, given, &out, &count, &value) && value.tag == KOPS_IS_TUPLE && value.n == 3);
    items = (const KopsValue *)value.p;
    EXPECT(items[0].tag == KOPS_IS_BOOL && !items[0].i && items[1].i && items[2].i);
    for (auto [kind, expected] : {std::pair(0, "ValueError"), {1, "OverflowError"}, {2, "MemoryError"}}) {
        KopsValue which = {KOPS_IS_INT, 0, kind, 0, nullptr};
        EXPECT(kops_call(4, &which, given, &out, &count, &value) && std::string(kops_error_type()) == expected);
    }
    KopsValue tensor = {KOPS_IS_TENSOR, 0, 0, 0, nullptr}; // its item is 2.5
    x.sizes[0] = 1;
    EXPECT(!kops_call(2, &tensor, given, &out, &count, &value) && value.d == 5);
    released = retained = 0;
    EXPECT(!kops_call(6, &tensor, given, &out, &count, &value) && retained == 1 && released == 1);
    EXPECT(!kops_call(7, &tensor, given, &out, &count, &value) && retained == 1 && released == 1); // handed on
    args[0] = KopsValue{};
    EXPECT(kops_call(0, args, given, &out, &count, &value) && std::string(kops_error_type()) == "NoMatch");
    KopsValue flag = {KOPS_IS_BOOL, 0, 1, 0, nullptr};
    EXPECT(!kops_call(1, &flag, given, &out, &count, &value) && value.n == 3);
    items = (const KopsValue *)value.p;
    EXPECT(items[0].d == 1.5 && text_of(items[1]) == "text" && text_of(items[2]) == "[1,2,3]");
    EXPECT(std::string(kops_call(5, args, given, &out, &count, &value)).find("no implementation") != std::string::npos);
}

int main()
{
    KopsTable table = {op, release, launch, runtime, error, retain, lock};
    kops_open(&table);
    tensors();
    types();
    dispatch();
    launches();
    numbers();
    binding();
    printf("%d failures\n", failures);
    return failures != 0;
}
