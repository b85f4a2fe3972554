// Calls of torch's functions through the table: Argument makes a KopsValue of any C++ argument, Result reads what came
// back.
#pragma once
#include <kops/abi.h>
#include <kops/types.h>

#include <climits>

namespace at
{
using namespace c10;
class Tensor;
using TensorList = ArrayRef<Tensor>;
using ITensorListRef = ArrayRef<Tensor>;

namespace indexing
{
struct EllipsisIndexType {
};
constexpr EllipsisIndexType Ellipsis{};
enum class TensorIndexType { None, Ellipsis };
constexpr std::nullopt_t None = std::nullopt;

struct Slice {
    std::optional<int64_t> start, stop, step;
    Slice(std::optional<int64_t> start = {}, std::optional<int64_t> stop = {}, std::optional<int64_t> step = {})
        : start(start), stop(stop), step(step)
    {
    }
};
} // namespace indexing
} // namespace at

namespace kops
{
using at::Tensor;

// An argument of a call. Lives as long as the C++ arguments it was made of, which it may point into.
class Argument
{
    KopsValue value_{};
    std::vector<int64_t> integers;
    std::vector<double> numbers;
    std::string text;

    void point(int tag, const void *data, size_t count)
    {
        value_ = {tag, (int32_t)count, 0, 0, data};
    }

  public:
    Argument(std::nullopt_t)
    {
    }
    template <class T, std::enable_if_t<std::is_arithmetic_v<T>, int> = 0> Argument(T number)
    {
        if constexpr (std::is_unsigned_v<T> && sizeof(T) == 8)
            value_ = {KOPS_IS_INT, (int64_t)number < 0, (int64_t)number, 0, nullptr};
        else
            *this = Argument(c10::Scalar(number));
    }
    Argument(const c10::Scalar &scalar)
    {
        if (scalar.isFloatingPoint()) {
            value_ = {KOPS_IS_FLOAT, 0, 0, scalar.toDouble(), nullptr};
        } else if (scalar.isComplex()) {
            numbers = {scalar.toComplexDouble().real(), scalar.toComplexDouble().imag()};
            point(KOPS_IS_COMPLEX, nullptr, 0);
        } else {
            value_ = {scalar.isBoolean() ? KOPS_IS_BOOL : KOPS_IS_INT, 0, scalar.toLong(), 0, nullptr};
        }
    }
    Argument(c10::ScalarType type) : value_{KOPS_IS_DTYPE, 0, (int64_t)type, 0, nullptr}
    {
    }
    Argument(c10::TypeMeta type) : Argument(type.toScalarType())
    {
    }
    Argument(c10::Device device) : value_{KOPS_IS_DEVICE, 0, (int64_t)device.type(), (double)device.index(), nullptr}
    {
    }
    Argument(c10::DeviceType type) : Argument(c10::Device(type))
    {
    }
    Argument(c10::MemoryFormat format) : value_{KOPS_IS_FORMAT, 0, (int64_t)format, 0, nullptr}
    {
    }
    Argument(c10::Layout)
    {
    }
    Argument(const c10::Generator &)
    {
    }
    Argument(std::string_view string)
    {
        point(KOPS_IS_STRING, string.data(), string.size());
    }
    Argument(const char *string) : Argument(std::string_view(string))
    {
    }
    Argument(std::string string) : text(std::move(string))
    {
        point(KOPS_IS_STRING, nullptr, text.size());
    }
    Argument(c10::IntArrayRef list)
    {
        point(KOPS_IS_INTS, list.data(), list.size());
    }
    Argument(c10::OptionalIntArrayRef list)
    {
        if (list.has_value())
            *this = Argument(*list);
    }
    Argument(c10::ArrayRef<double> list)
    {
        point(KOPS_IS_FLOATS, list.data(), list.size());
    }
    template <class T, std::enable_if_t<std::is_arithmetic_v<T>, int> = 0> Argument(const std::vector<T> &list)
    {
        if constexpr (std::is_floating_point_v<T>)
            numbers.assign(list.begin(), list.end());
        else
            integers.assign(list.begin(), list.end());
        point(std::is_floating_point_v<T> ? KOPS_IS_FLOATS : KOPS_IS_INTS, nullptr, list.size());
    }
    template <size_t N> Argument(const std::array<bool, N> &list) : integers(list.begin(), list.end())
    {
        point(KOPS_IS_INTS, nullptr, N);
    }
    Argument(const c10::TensorOptions &options)
    {
        auto device = options.device_opt();
        auto format = options.memory_format_opt();
        value_.tag = KOPS_IS_OPTIONS;
        value_.n = options.pinned_memory() | (format ? (int)*format + 1 : 0) << 8;
        value_.i = (int64_t)options.dtype_opt().value_or(c10::TypeMeta()).toScalarType() |
                   (device ? (int)device->type() : 255) << 8 | (device ? device->index() & 255 : 255) << 16;
        value_.d = options.requires_grad();
    }
    Argument(const at::indexing::Slice &slice)
        : integers{slice.start.value_or(INT64_MIN), slice.stop.value_or(INT64_MIN), slice.step.value_or(INT64_MIN)}
    {
        point(KOPS_IS_SLICE, nullptr, 3);
    }
    Argument(at::indexing::EllipsisIndexType) : Argument("...")
    {
    }
    Argument(at::indexing::TensorIndexType kind)
    {
        if (kind == at::indexing::TensorIndexType::Ellipsis)
            *this = Argument("...");
    }
    template <class T> Argument(const std::optional<T> &optional)
    {
        if (optional)
            *this = Argument(*optional);
    }
    Argument(const Tensor &tensor);
    Argument(at::TensorList list);
    Argument(const std::vector<Tensor> &list);

    KopsValue value() const
    {
        KopsValue value = value_;
        if (!integers.empty())
            value.p = integers.data();
        else if (!numbers.empty())
            value.p = numbers.data();
        else if (!text.empty())
            value.p = text.data();
        return value;
    }
};

// What a function of torch returned.
class Result
{
    KopsTensor few[KOPS_RESULTS], *tensors = few;
    std::vector<KopsTensor> many;
    int count = 0;
    KopsValue scalar = {};

  public:
    Result(const char *name, const Argument *arguments, size_t count);
    ~Result();
    Result(const Result &) = delete;
    const KopsTensor *begin() const
    {
        return tensors;
    }
    int size() const
    {
        return count;
    }
    // The tensor with this index, taken out of the result.
    Tensor tensor(int index = 0);
    std::string text() const
    {
        return {(const char *)scalar.p, (size_t)scalar.n};
    }
    c10::Scalar number() const
    {
        if (scalar.tag == KOPS_IS_COMPLEX) {
            auto parts = (const double *)scalar.p;
            return c10::complex<double>(parts[0], parts[1]);
        }
        return scalar.tag == KOPS_IS_FLOAT  ? c10::Scalar(scalar.d)
               : scalar.tag == KOPS_IS_BOOL ? c10::Scalar(scalar.i != 0)
                                            : c10::Scalar(scalar.i);
    }
};

// Calls a function and converts its result to R: void, Tensor, a tuple or vector of tensors, Scalar, a number.
template <class R> R call(const char *name, std::initializer_list<Argument> arguments);
// Calls a function that writes to `changed`, whose sizes and strides may be others then. Returns `changed`.
Tensor &call_in_place(const Tensor &changed, const char *name, std::initializer_list<Argument> arguments);
} // namespace kops
