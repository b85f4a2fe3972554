// torch's functions: those of ops.txt and what has no declaration there; operators, guards, torch::nn::functional.
#pragma once
#include <kops/tensor.h>

namespace at
{
namespace Reduction
{
enum Reduction { None, Mean, Sum };
}
} // namespace at

#include <kops/functions.h> // generated of ops.txt

namespace at
{
// A number before the operator: the function with its sides changed, or a tensor of that number, as torch does it.
#define KOPS_BINARY(OP, FORWARD, BACKWARD)                                                                             \
    inline Tensor operator OP(const Tensor &x, const Tensor &y)                                                        \
    {                                                                                                                  \
        return FORWARD;                                                                                                \
    }                                                                                                                  \
    inline Tensor operator OP(const Tensor &x, const Scalar &y)                                                        \
    {                                                                                                                  \
        return FORWARD;                                                                                                \
    }                                                                                                                  \
    inline Tensor operator OP(const Scalar &x, const Tensor &y)                                                        \
    {                                                                                                                  \
        return BACKWARD;                                                                                               \
    }
KOPS_BINARY(+, x.add(y), y.add(x))
KOPS_BINARY(-, x.sub(y), empty_like(y).fill_(x).sub_(y))
KOPS_BINARY(*, x.mul(y), y.mul(x))
KOPS_BINARY(/, x.div(y), empty_like(y).fill_(x).div_(y))
KOPS_BINARY(%, x.remainder(y), empty_like(y).fill_(x).remainder_(y))
KOPS_BINARY(&, x.bitwise_and(y), y.bitwise_and(x))
KOPS_BINARY(|, x.bitwise_or(y), y.bitwise_or(x))
KOPS_BINARY(^, x.bitwise_xor(y), y.bitwise_xor(x))
KOPS_BINARY(<, x.lt(y), y.gt(x))
KOPS_BINARY(<=, x.le(y), y.ge(x))
KOPS_BINARY(>, x.gt(y), y.lt(x))
KOPS_BINARY(>=, x.ge(y), y.le(x))
KOPS_BINARY(==, x.eq(y), y.eq(x))
KOPS_BINARY(!=, x.ne(y), y.ne(x))
#undef KOPS_BINARY

// As the methods: an int is a dimension, and no bool.
inline Tensor var(const Tensor &self, int dim)
{
    return self.var(dim);
}
inline Tensor std(const Tensor &self, int dim)
{
    return self.std(dim);
}
inline std::tuple<Tensor, Tensor> var_mean(const Tensor &self, int dim)
{
    return var_mean(self, IntArrayRef(dim));
}
inline std::tuple<Tensor, Tensor> std_mean(const Tensor &self, int dim)
{
    return std_mean(self, IntArrayRef(dim));
}

// Memory of the caller as a tensor. There is none with a deleter: nothing could tell when torch's last view is gone.
inline Tensor from_blob(void *data, IntArrayRef sizes, const TensorOptions &options = {})
{
    return kops::call<Tensor>("from_blob options", {(int64_t)data, sizes, options});
}
inline Tensor from_blob(void *data, IntArrayRef sizes, IntArrayRef strides, const TensorOptions &options = {})
{
    return kops::call<Tensor>("from_blob strides options", {(int64_t)data, sizes, strides, options});
}

// Nested lists of numbers as tensor() takes them.
class TensorData
{
    std::vector<int64_t> sizes_;
    std::vector<double> numbers;
    std::vector<int64_t> integers;
    ScalarType type_;

    template <class T> void append(T number)
    {
        numbers.push_back((double)number);
        integers.push_back((int64_t)number);
    }

  public:
    template <class T, std::enable_if_t<std::is_arithmetic_v<T>, int> = 0>
    TensorData(T number) : type_(c10::CppTypeToScalarType<T>::value)
    {
        append(number);
    }
    template <class T, std::enable_if_t<std::is_arithmetic_v<T>, int> = 0>
    TensorData(ArrayRef<T> list) : sizes_{(int64_t)list.size()}, type_(c10::CppTypeToScalarType<T>::value)
    {
        for (T number : list)
            append(number);
    }
    template <class T, std::enable_if_t<std::is_arithmetic_v<T>, int> = 0>
    TensorData(const std::vector<T> &list) : sizes_{(int64_t)list.size()}, type_(c10::CppTypeToScalarType<T>::value)
    {
        for (T number : list)
            append(number);
    }
    TensorData(std::initializer_list<TensorData> list) : sizes_{(int64_t)list.size()}, type_(kFloat)
    {
        for (const TensorData &item : list) {
            TORCH_CHECK(item.sizes_ == list.begin()->sizes_ && item.type_ == list.begin()->type_,
                        "torch::tensor: the items of a list differ in size or type");
            numbers.insert(numbers.end(), item.numbers.begin(), item.numbers.end());
            integers.insert(integers.end(), item.integers.begin(), item.integers.end());
            type_ = item.type_;
        }
        if (list.size() > 0)
            sizes_.insert(sizes_.end(), list.begin()->sizes_.begin(), list.begin()->sizes_.end());
    }
    // The type of the numbers in C++, and the one that torch::tensor() makes of it.
    ScalarType type() const
    {
        return type_;
    }
    ScalarType usual_type() const
    {
        return type_ == kInt ? kLong : type_ == kDouble ? kFloat : type_;
    }
    IntArrayRef sizes() const
    {
        return sizes_;
    }
    Tensor tensor(ScalarType type, IntArrayRef sizes, const TensorOptions &options) const
    {
        kops::Argument values =
            isFloatingType(type_) ? kops::Argument(ArrayRef<double>(numbers)) : kops::Argument(IntArrayRef(integers));
        return kops::call<Tensor>("tensor sizes options",
                                  {values, sizes, options.has_dtype() ? options : options.dtype(type)});
    }
};
// at::tensor() keeps the type of C++ and has one dimension for a number, too; torch::tensor() does neither.
inline Tensor tensor(const TensorData &data, const TensorOptions &options = {})
{
    return data.tensor(data.type(), data.sizes().empty() ? IntArrayRef(1) : data.sizes(), options);
}

// Whether torch records gradients. The guards put it back as it was.
struct GradMode {
    static bool is_enabled()
    {
        return kops::call<bool>("grad_mode", {});
    }
    static void set_enabled(bool enabled)
    {
        kops::call<bool>("grad_mode", {enabled});
    }
};
class AutoGradMode
{
    bool before;

  public:
    explicit AutoGradMode(bool enabled) : before(kops::call<bool>("grad_mode", {enabled}))
    {
    }
    AutoGradMode(const AutoGradMode &) = delete;
    ~AutoGradMode()
    {
        try {
            GradMode::set_enabled(before);
        } catch (const c10::Error &) { // no destructor throws
        }
    }
};
struct NoGradGuard : AutoGradMode {
    NoGradGuard() : AutoGradMode(false)
    {
    }
};
struct InferenceMode : AutoGradMode {
    explicit InferenceMode(bool enabled = true) : AutoGradMode(!enabled)
    {
    }
};
using AutoDispatchBelowADInplaceOrView = NoGradGuard;
using AutoNonVariableTypeMode = NoGradGuard;

// torch's settings of the process.
struct Context {
    bool deterministicAlgorithms() const
    {
        return kops::call<bool>("deterministic", {});
    }
    void alertNotDeterministic(std::string_view caller) const
    {
        TORCH_CHECK(!deterministicAlgorithms(), caller,
                    " does not have a deterministic implementation, but you set "
                    "'torch.use_deterministic_algorithms(True)'.");
    }
};
inline Context &globalContext()
{
    static Context context;
    return context;
}

inline std::optional<Device> device_of(const Tensor &tensor)
{
    return tensor.defined() ? std::optional<Device>(tensor.device()) : std::nullopt;
}
inline int64_t maybe_wrap_dim(int64_t dim, int64_t count)
{
    int64_t n = std::max<int64_t>(count, 1);
    KOPS_CHECK(IndexError, dim >= -n && dim < n, "Dimension out of range (expected to be in range of [", -n, ", ",
               n - 1, "], but got ", dim, ")");
    return dim < 0 ? dim + n : dim;
}
inline void manual_seed(uint64_t seed)
{
    kops::call<void>("manual_seed", {(int64_t)seed});
}

// The type in which arithmetic of a type is done.
template <class T> struct OpMathType {
    using type = std::conditional_t<std::is_class_v<T> && sizeof(T) <= 2, float, T>;
};
template <> struct OpMathType<c10::complex<Half>> {
    using type = c10::complex<float>;
};
template <class T> using opmath_type = typename OpMathType<T>::type;
// The type of sums, on a GPU (true) or a CPU: there float is summed as double. Integers have 64 bits on both.
template <class T, bool gpu> struct AccumulateType {
    using type = std::conditional_t<std::is_integral_v<T> && !std::is_same_v<T, bool>, int64_t, opmath_type<T>>;
};
template <> struct AccumulateType<float, false> {
    using type = double;
};
template <> struct AccumulateType<c10::complex<float>, false> {
    using type = c10::complex<double>;
};
template <class T, bool gpu> using acc_type = typename AccumulateType<T, gpu>::type;

template <class T, class U> constexpr T ceil_div(T a, U b)
{
    return (a + b - 1) / b;
}
template <class T, class U> constexpr T ceilDiv(T a, U b)
{
    return ceil_div(a, b);
}
template <class T, class U> constexpr T round_up(T a, U b)
{
    return ceil_div(a, b) * b;
}
template <class F> void parallel_for(int64_t begin, int64_t end, int64_t, const F &body)
{
    if (begin < end)
        body(begin, end);
}
inline int get_num_threads()
{
    return 1;
}

// Ops for which std::tuple results and C++ names differ from torch's Python.
inline Tensor index(const Tensor &self, std::initializer_list<indexing::TensorIndex> indices)
{
    return self.index(indices);
}
inline Tensor nll_loss_nd(const Tensor &self, const Tensor &target)
{
    return nll_loss(self, target);
}
} // namespace at

namespace c10
{
using at::AutoGradMode;
using at::InferenceMode;
using at::maybe_wrap_dim;
using at::NoGradGuard;

// A range for loops: c10::irange(n), c10::irange(begin, end).
template <class T> class IntegerRange
{
    T first, last;

  public:
    struct iterator {
        T value;
        T operator*() const
        {
            return value;
        }
        iterator &operator++()
        {
            ++value;
            return *this;
        }
        bool operator!=(iterator other) const
        {
            return value < other.value;
        }
    };
    IntegerRange(T first, T last) : first(first), last(last)
    {
    }
    iterator begin() const
    {
        return {first};
    }
    iterator end() const
    {
        return {last};
    }
};
template <class T> IntegerRange<T> irange(T end)
{
    return {T(0), end};
}
template <class T, class U> IntegerRange<U> irange(T begin, U end)
{
    return {(U)begin, end};
}

template <class C> int64_t multiply_integers(const C &list)
{
    int64_t product = 1;
    for (int64_t number : list)
        product *= number;
    return product;
}
} // namespace c10

namespace torch
{
using namespace at;
using at::Tensor;
inline Tensor tensor(const at::TensorData &data, const TensorOptions &options = {})
{
    return data.tensor(data.usual_type(), data.sizes(), options);
}
namespace indexing = at::indexing;
namespace headeronly
{
using namespace c10;
}
using c10::CppTypeToScalarType;
template <class T> constexpr ScalarType CppTypeToScalarType_v = CppTypeToScalarType<T>::value;

namespace autograd
{
using Variable = at::Tensor;
using variable_list = std::vector<at::Tensor>;
using tensor_list = std::vector<at::Tensor>;
using at::AutoGradMode;
using at::GradMode;
} // namespace autograd

namespace nn::functional
{
using at::adaptive_avg_pool1d;
using at::adaptive_avg_pool2d;
using at::adaptive_avg_pool3d;
using at::celu;
using at::conv1d;
using at::conv2d;
using at::conv3d;
using at::conv_transpose2d;
using at::elu;
using at::gelu;
using at::hardswish;
using at::hardtanh;
using at::leaky_relu;
using at::linear;
using at::mish;
using at::relu;
using at::relu6;
using at::selu;
using at::silu;
using at::softplus;

// Options of a function: a constructor with the ones that are needed, a setter for each of the others.
#define KOPS_OPTION(CLASS, TYPE, NAME, VALUE)                                                                          \
    TYPE NAME##_ = VALUE;                                                                                              \
    CLASS &NAME(TYPE value)                                                                                            \
    {                                                                                                                  \
        NAME##_ = std::move(value);                                                                                    \
        return *this;                                                                                                  \
    }

class SoftmaxFuncOptions
{
  public:
    SoftmaxFuncOptions(int64_t dim) : dim_(dim)
    {
    }
    int64_t dim_;
    KOPS_OPTION(SoftmaxFuncOptions, std::optional<ScalarType>, dtype, std::nullopt)
};
using LogSoftmaxFuncOptions = SoftmaxFuncOptions;
inline Tensor softmax(const Tensor &input, const SoftmaxFuncOptions &options)
{
    return at::softmax(input, options.dim_, options.dtype_);
}
inline Tensor log_softmax(const Tensor &input, const LogSoftmaxFuncOptions &options)
{
    return at::log_softmax(input, options.dim_, options.dtype_);
}

class NormalizeFuncOptions
{
  public:
    KOPS_OPTION(NormalizeFuncOptions, double, p, 2.0)
    KOPS_OPTION(NormalizeFuncOptions, int64_t, dim, 1)
    KOPS_OPTION(NormalizeFuncOptions, double, eps, 1e-12)
};
inline Tensor normalize(const Tensor &input, const NormalizeFuncOptions &options = {})
{
    Tensor norm = input.norm(options.p_, options.dim_, true).clamp_min(options.eps_);
    return input / norm.expand_as(input);
}

class LayerNormFuncOptions
{
  public:
    LayerNormFuncOptions(std::vector<int64_t> normalized_shape) : normalized_shape_(std::move(normalized_shape))
    {
    }
    std::vector<int64_t> normalized_shape_;
    KOPS_OPTION(LayerNormFuncOptions, Tensor, weight, {})
    KOPS_OPTION(LayerNormFuncOptions, Tensor, bias, {})
    KOPS_OPTION(LayerNormFuncOptions, double, eps, 1e-5)
};
inline Tensor layer_norm(const Tensor &input, const LayerNormFuncOptions &options)
{
    return at::layer_norm(input, options.normalized_shape_, options.weight_, options.bias_, options.eps_);
}

class GroupNormFuncOptions
{
  public:
    GroupNormFuncOptions(int64_t num_groups) : num_groups_(num_groups)
    {
    }
    int64_t num_groups_;
    KOPS_OPTION(GroupNormFuncOptions, Tensor, weight, {})
    KOPS_OPTION(GroupNormFuncOptions, Tensor, bias, {})
    KOPS_OPTION(GroupNormFuncOptions, double, eps, 1e-5)
};
inline Tensor group_norm(const Tensor &input, const GroupNormFuncOptions &options)
{
    return at::group_norm(input, options.num_groups_, options.weight_, options.bias_, options.eps_);
}

// Sizes of the 1 to 3 dimensions of a convolution: one number stands for all of them.
class ConvSizes : public std::vector<int64_t>
{
  public:
    ConvSizes(int64_t one) : vector{one}
    {
    }
    ConvSizes(std::initializer_list<int64_t> list) : vector(list)
    {
    }
    ConvSizes(std::vector<int64_t> list) : vector(std::move(list))
    {
    }
};
class ConvFuncOptions
{
  public:
    KOPS_OPTION(ConvFuncOptions, Tensor, bias, {})
    KOPS_OPTION(ConvFuncOptions, ConvSizes, stride, 1)
    KOPS_OPTION(ConvFuncOptions, ConvSizes, padding, 0)
    KOPS_OPTION(ConvFuncOptions, ConvSizes, dilation, 1)
    KOPS_OPTION(ConvFuncOptions, int64_t, groups, 1)
};
using Conv1dFuncOptions = ConvFuncOptions;
using Conv2dFuncOptions = ConvFuncOptions;
using Conv3dFuncOptions = ConvFuncOptions;
#define KOPS_CONVOLUTION(NAME)                                                                                         \
    inline Tensor NAME(const Tensor &input, const Tensor &weight, const ConvFuncOptions &options)                      \
    {                                                                                                                  \
        return at::NAME(input, weight, options.bias_, options.stride_, options.padding_, options.dilation_,            \
                        options.groups_);                                                                              \
    }
KOPS_CONVOLUTION(conv1d)
KOPS_CONVOLUTION(conv2d)
KOPS_CONVOLUTION(conv3d)
#undef KOPS_CONVOLUTION

class PadFuncOptions
{
  public:
    PadFuncOptions(std::vector<int64_t> pad) : pad_(std::move(pad))
    {
    }
    std::vector<int64_t> pad_;
    KOPS_OPTION(PadFuncOptions, double, value, 0)
};
inline Tensor pad(const Tensor &input, const PadFuncOptions &options)
{
    return at::pad(input, options.pad_, "constant", options.value_);
}
#undef KOPS_OPTION
} // namespace nn::functional
} // namespace torch
