// torch's small types: ScalarType, Device, Layout, MemoryFormat, ArrayRef, Scalar, TensorOptions, Generator.
#pragma once
#include <kops/check.h>
#include <kops/numbers.h>

#include <algorithm>
#include <array>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace c10
{
// C++ type, name, number, and the name that TypeMeta prints: all types whose tensors C++ code can read.
#define KOPS_SCALAR_TYPES(_)                                                                                           \
    _(uint8_t, Byte, 0, "unsigned char")                                                                               \
    _(int8_t, Char, 1, "signed char")                                                                                  \
    _(int16_t, Short, 2, "short int")                                                                                  \
    _(int, Int, 3, "int")                                                                                              \
    _(int64_t, Long, 4, "long int")                                                                                    \
    _(::c10::Half, Half, 5, "c10::Half")                                                                               \
    _(float, Float, 6, "float")                                                                                        \
    _(double, Double, 7, "double")                                                                                     \
    _(::c10::complex<::c10::Half>, ComplexHalf, 8, "c10::complex<c10::Half>")                                          \
    _(::c10::complex<float>, ComplexFloat, 9, "c10::complex<float>")                                                   \
    _(::c10::complex<double>, ComplexDouble, 10, "c10::complex<double>")                                               \
    _(bool, Bool, 11, "bool")                                                                                          \
    _(::c10::BFloat16, BFloat16, 15, "c10::BFloat16")                                                                  \
    _(::c10::Float8_e5m2, Float8_e5m2, 23, "c10::Float8_e5m2")                                                         \
    _(::c10::Float8_e4m3fn, Float8_e4m3fn, 24, "c10::Float8_e4m3fn")                                                   \
    _(uint16_t, UInt16, 27, "short unsigned int")                                                                      \
    _(uint32_t, UInt32, 28, "unsigned int")                                                                            \
    _(uint64_t, UInt64, 29, "long unsigned int")

enum class ScalarType : int8_t {
#define _(TYPE, NAME, NUMBER, TEXT) NAME = NUMBER,
    KOPS_SCALAR_TYPES(_)
#undef _
        Undefined = 44,
};

inline const char *toString(ScalarType type)
{
    switch (type) {
#define _(TYPE, NAME, NUMBER, TEXT)                                                                                    \
    case ScalarType::NAME:                                                                                             \
        return #NAME;
        KOPS_SCALAR_TYPES(_)
#undef _
    default:
        return "UNKNOWN_SCALAR";
    }
}

inline size_t elementSize(ScalarType type)
{
    switch (type) {
#define _(TYPE, NAME, NUMBER, TEXT)                                                                                    \
    case ScalarType::NAME:                                                                                             \
        return sizeof(TYPE);
        KOPS_SCALAR_TYPES(_)
#undef _
    default:
        kops::fail<Error>(str("elementSize: unknown ScalarType ", (int)type));
    }
}

inline std::ostream &operator<<(std::ostream &out, ScalarType type)
{
    return out << toString(type);
}

inline bool isIntegralType(ScalarType type, bool include_bool = false)
{
    return (type >= ScalarType::Byte && type <= ScalarType::Long) ||
           (type >= ScalarType::UInt16 && type <= ScalarType::UInt64) || (include_bool && type == ScalarType::Bool);
}
inline bool isComplexType(ScalarType type)
{
    return type >= ScalarType::ComplexHalf && type <= ScalarType::ComplexDouble;
}
inline bool isReducedFloatingType(ScalarType type)
{
    return type == ScalarType::Half || type == ScalarType::BFloat16 || type == ScalarType::Float8_e5m2 ||
           type == ScalarType::Float8_e4m3fn;
}
inline bool isFloatingType(ScalarType type)
{
    return type == ScalarType::Float || type == ScalarType::Double || isReducedFloatingType(type);
}

// The ScalarType of a C++ type. Not defined for others, so that data_ptr<T>() of an unknown T does not compile.
template <class T> struct CppTypeToScalarType;
namespace impl
{
template <ScalarType> struct ScalarTypeToCPPType;
}
#define _(TYPE, NAME, NUMBER, TEXT)                                                                                    \
    template <> struct CppTypeToScalarType<TYPE> : std::integral_constant<ScalarType, ScalarType::NAME> {              \
    };                                                                                                                 \
    template <> struct impl::ScalarTypeToCPPType<ScalarType::NAME> {                                                   \
        using type = TYPE;                                                                                             \
    };                                                                                                                 \
    constexpr ScalarType k##NAME = ScalarType::NAME;
KOPS_SCALAR_TYPES(_)
#undef _
namespace impl
{
template <ScalarType type> using ScalarTypeToCPPTypeT = typename ScalarTypeToCPPType<type>::type;
template <class T> const char *type_text()
{
#define _(TYPE, NAME, NUMBER, TEXT)                                                                                    \
    if (std::is_same_v<T, TYPE>)                                                                                       \
        return #TYPE;
    KOPS_SCALAR_TYPES(_)
#undef _
    return toString(CppTypeToScalarType<T>::value);
}
} // namespace impl
// The kernel's types for tensors of Half and BFloat16 are CUDA's as often as torch's.
template <> struct CppTypeToScalarType<__half> : std::integral_constant<ScalarType, ScalarType::Half> {
};
template <> struct CppTypeToScalarType<__nv_bfloat16> : std::integral_constant<ScalarType, ScalarType::BFloat16> {
};
template <> struct CppTypeToScalarType<long long> : std::integral_constant<ScalarType, ScalarType::Long> {
};
template <> struct CppTypeToScalarType<std::complex<float>> : std::integral_constant<ScalarType, kComplexFloat> {
};
template <> struct CppTypeToScalarType<std::complex<double>> : std::integral_constant<ScalarType, kComplexDouble> {
};

constexpr ScalarType kUInt8 = kByte, kInt8 = kChar, kInt16 = kShort, kInt32 = kInt, kInt64 = kLong, kFloat16 = kHalf,
                     kFloat32 = kFloat, kFloat64 = kDouble, kComplex32 = kComplexHalf, kComplex64 = kComplexFloat,
                     kComplex128 = kComplexDouble, kU8 = kByte, kI8 = kChar, kI16 = kShort, kI32 = kInt, kI64 = kLong,
                     kF16 = kHalf, kF32 = kFloat, kF64 = kDouble;

// A data type as TensorOptions and Tensor::dtype() give it.
class TypeMeta
{
    ScalarType type = ScalarType::Undefined;

  public:
    TypeMeta() = default;
    TypeMeta(ScalarType type) : type(type)
    {
    }
    template <class T> static TypeMeta Make()
    {
        return CppTypeToScalarType<T>::value;
    }
    template <class T> bool Match() const
    {
        return type == CppTypeToScalarType<T>::value;
    }
    ScalarType toScalarType() const
    {
        return type;
    }
    std::string_view name() const
    {
        switch (type) {
#define _(TYPE, NAME, NUMBER, TEXT)                                                                                    \
    case ScalarType::NAME:                                                                                             \
        return TEXT;
            KOPS_SCALAR_TYPES(_)
#undef _
        default:
            return "nullptr (uninitialized)";
        }
    }
    size_t itemsize() const
    {
        return elementSize(type);
    }
};
inline bool operator==(TypeMeta a, TypeMeta b)
{
    return a.toScalarType() == b.toScalarType();
}
inline bool operator!=(TypeMeta a, TypeMeta b)
{
    return !(a == b);
}
inline bool operator==(TypeMeta a, ScalarType b)
{
    return a.toScalarType() == b;
}
inline bool operator!=(TypeMeta a, ScalarType b)
{
    return !(a == b);
}
inline bool operator==(ScalarType a, TypeMeta b)
{
    return b == a;
}
inline bool operator!=(ScalarType a, TypeMeta b)
{
    return !(b == a);
}
inline std::ostream &operator<<(std::ostream &out, TypeMeta type)
{
    return out << type.name();
}
inline ScalarType typeMetaToScalarType(TypeMeta type)
{
    return type.toScalarType();
}
inline TypeMeta scalarTypeToTypeMeta(ScalarType type)
{
    return type;
}

enum class DeviceType : int8_t { CPU = 0, CUDA = 1, HIP = 6, Meta = 14, COMPILE_TIME_MAX_DEVICE_TYPES = 22 };
constexpr DeviceType kCPU = DeviceType::CPU, kCUDA = DeviceType::CUDA, kHIP = DeviceType::HIP, kMeta = DeviceType::Meta;
using DeviceIndex = int8_t;

inline std::string DeviceTypeName(DeviceType type, bool lower_case = false)
{
    std::string name = type == kCPU ? "CPU" : type == kCUDA ? "CUDA" : type == kHIP ? "HIP" : "META";
    if (lower_case)
        std::transform(name.begin(), name.end(), name.begin(), [](char c) { return (char)(c - 'A' + 'a'); });
    return name;
}
inline std::ostream &operator<<(std::ostream &out, DeviceType type)
{
    return out << DeviceTypeName(type, true);
}

class Device
{
    DeviceType type_;
    DeviceIndex index_;

  public:
    Device(DeviceType type, DeviceIndex index = -1) : type_(type), index_(index)
    {
    }
    // "cpu", "cuda", "cuda:1", "meta".
    Device(const std::string &text) : type_(kCPU), index_(-1)
    {
        size_t colon = std::min(text.find(':'), text.size());
        std::string name = text.substr(0, colon), digits = text.substr(colon);
        bool plain = digits.find_first_not_of("0123456789", 1) == std::string::npos;
        KOPS_CHECK(Error, !text.empty(), "Device string must not be empty");
        KOPS_CHECK(Error, plain && digits != ":" && (digits.size() < 3 || digits[1] != '0') && digits.size() < 5,
                   "Invalid device string: '", text, "'");
        KOPS_CHECK(Error, name == "cpu" || name == "cuda" || name == "meta",
                   "Expected one of cpu, cuda, meta device type at start of device string: ", name);
        type_ = name == "cuda" ? kCUDA : name == "meta" ? kMeta : kCPU;
        index_ = (DeviceIndex)(digits.empty() ? -1 : std::stoi(digits.substr(1)));
    }
    Device(const char *text) : Device(std::string(text))
    {
    }
    DeviceType type() const
    {
        return type_;
    }
    DeviceIndex index() const
    {
        return index_;
    }
    void set_index(DeviceIndex index)
    {
        index_ = index;
    }
    bool has_index() const
    {
        return index_ >= 0;
    }
    bool is_cuda() const
    {
        return type_ == kCUDA;
    }
    bool is_cpu() const
    {
        return type_ == kCPU;
    }
    bool is_meta() const
    {
        return type_ == kMeta;
    }
    bool operator==(const Device &other) const
    {
        return type_ == other.type_ && index_ == other.index_;
    }
    bool operator!=(const Device &other) const
    {
        return !(*this == other);
    }
    std::string str() const
    {
        std::string name = DeviceTypeName(type_, true);
        return has_index() ? name + ":" + std::to_string(index_) : name;
    }
};
inline std::ostream &operator<<(std::ostream &out, const Device &device)
{
    return out << device.str();
}

enum class Layout : int8_t { Strided };
constexpr Layout kStrided = Layout::Strided;
inline std::ostream &operator<<(std::ostream &out, Layout)
{
    return out << "Strided";
}

enum class MemoryFormat : int8_t { Contiguous, Preserve, ChannelsLast, ChannelsLast3d };
inline std::ostream &operator<<(std::ostream &out, MemoryFormat format)
{
    static const char *const names[] = {"Contiguous", "Preserve", "ChannelsLast", "ChannelsLast3d"};
    return out << names[(int)format];
}

using std::make_optional;
using std::nullopt;
using std::nullopt_t;
template <class T> using optional = std::optional<T>;
using string_view = std::string_view;
template <class T> using List = std::vector<T>;

// A view of an array that the caller keeps alive.
template <class T> class ArrayRef
{
    const T *first = nullptr;
    size_t count = 0;

  public:
    using value_type = T;
    using size_type = size_t;
    using iterator = const T *;
    using const_iterator = const T *;
    using reverse_iterator = std::reverse_iterator<iterator>;
    constexpr ArrayRef() = default;
    constexpr ArrayRef(const T &one) : first(&one), count(1)
    {
    }
    constexpr ArrayRef(const T *first, size_t count) : first(first), count(count)
    {
    }
    constexpr ArrayRef(const T *first, const T *last) : first(first), count(last - first)
    {
    }
    template <class C, class = std::enable_if_t<
                           std::is_same_v<std::remove_const_t<decltype(std::declval<C>().size())>, size_t> &&
                           std::is_convertible_v<decltype(std::declval<C>().data()), const T *>>>
    ArrayRef(const C &container) : first(container.data()), count(container.size())
    {
        static_assert(!std::is_same_v<C, std::vector<bool>>, "kops: ArrayRef<bool> has no std::vector<bool>");
    }
    constexpr ArrayRef(const std::initializer_list<T> &list) : ArrayRef(list.begin(), list.size())
    {
    }
    template <size_t N> constexpr ArrayRef(const T (&array)[N]) : first(array), count(N)
    {
    }
    constexpr const T *begin() const
    {
        return first;
    }
    constexpr const T *end() const
    {
        return first + count;
    }
    constexpr const T *cbegin() const
    {
        return first;
    }
    constexpr const T *cend() const
    {
        return first + count;
    }
    reverse_iterator rbegin() const
    {
        return reverse_iterator(end());
    }
    reverse_iterator rend() const
    {
        return reverse_iterator(begin());
    }
    constexpr const T *data() const
    {
        return first;
    }
    constexpr size_t size() const
    {
        return count;
    }
    constexpr bool empty() const
    {
        return count == 0;
    }
    constexpr const T &operator[](size_t index) const
    {
        return first[index];
    }
    const T &at(size_t index) const
    {
        TORCH_CHECK(index < count, "ArrayRef: invalid index Index = ", index, "; Length = ", count);
        return first[index];
    }
    const T &front() const
    {
        return at(0);
    }
    const T &back() const
    {
        return at(count - 1);
    }
    ArrayRef slice(size_t start, size_t length) const
    {
        TORCH_CHECK(start + length <= count, "ArrayRef: invalid slice, N = ", start, "; M = ", length,
                    "; size = ", count);
        return {first + start, length};
    }
    ArrayRef slice(size_t start) const
    {
        return slice(start, count - start);
    }
    bool equals(ArrayRef other) const
    {
        return std::equal(begin(), end(), other.begin(), other.end());
    }
    std::vector<T> vec() const
    {
        return std::vector<T>(begin(), end());
    }
    operator std::vector<T>() const
    {
        return vec();
    }
};
#define KOPS_COMPARE_ARRAYS(A, B)                                                                                      \
    template <class T> bool operator==(const A &a, const B &b)                                                         \
    {                                                                                                                  \
        return ArrayRef<T>(a).equals(b);                                                                               \
    }                                                                                                                  \
    template <class T> bool operator!=(const A &a, const B &b)                                                         \
    {                                                                                                                  \
        return !ArrayRef<T>(a).equals(b);                                                                              \
    }
KOPS_COMPARE_ARRAYS(ArrayRef<T>, ArrayRef<T>)
KOPS_COMPARE_ARRAYS(ArrayRef<T>, std::vector<T>)
KOPS_COMPARE_ARRAYS(std::vector<T>, ArrayRef<T>)
#undef KOPS_COMPARE_ARRAYS
template <class T> std::ostream &operator<<(std::ostream &out, ArrayRef<T> array)
{
    out << '[';
    for (size_t i = 0; i < array.size(); i++)
        out << (i ? ", " : "") << array[i];
    return out << ']';
}
using IntArrayRef = ArrayRef<int64_t>;
template <class T, unsigned N = 6> class SmallVector : public std::vector<T>
{
  public:
    using std::vector<T>::vector;
};
template <unsigned N> using SmallVectorN = SmallVector<int64_t, N>;
using DimVector = SmallVector<int64_t, 5>;

// IntArrayRef or nothing. Also made of what IntArrayRef is made of, so that a dim argument takes 1, {0, 1} and a
// vector.
class OptionalIntArrayRef
{
    std::optional<IntArrayRef> value_;

  public:
    OptionalIntArrayRef() = default;
    OptionalIntArrayRef(nullopt_t)
    {
    }
    OptionalIntArrayRef(IntArrayRef value) : value_(value)
    {
    }
    OptionalIntArrayRef(const int64_t &one) : value_(IntArrayRef(one))
    {
    }
    OptionalIntArrayRef(const std::vector<int64_t> &value) : value_(IntArrayRef(value))
    {
    }
    OptionalIntArrayRef(const std::initializer_list<int64_t> &value) : value_(IntArrayRef(value.begin(), value.size()))
    {
    }
    OptionalIntArrayRef(std::optional<IntArrayRef> value) : value_(value)
    {
    }
    bool has_value() const
    {
        return value_.has_value();
    }
    explicit operator bool() const
    {
        return has_value();
    }
    const IntArrayRef &value() const
    {
        return value_.value();
    }
    const IntArrayRef &operator*() const
    {
        return *value_;
    }
};

// A number of a kind: int64_t, double, bool or complex.
class Scalar
{
  public:
    enum class Kind { Int, Double, Bool, Complex };
    Scalar() : Scalar(int64_t(0))
    {
    }
    template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
    Scalar(T value)
        : kind(std::is_same_v<T, bool>       ? Kind::Bool
               : std::is_floating_point_v<T> ? Kind::Double
                                             : Kind::Int),
          integer((int64_t)value), number((double)value)
    {
        KOPS_CHECK(Error, !(kind == Kind::Int && value > 0) || integer > 0,
                   "value cannot be converted to type int64_t without overflow");
    }
    Scalar(Half value) : Scalar((float)value)
    {
    }
    Scalar(BFloat16 value) : Scalar((float)value)
    {
    }
    template <class T> Scalar(complex<T> value) : kind(Kind::Complex), number(value.real()), imaginary(value.imag())
    {
    }
    // The number as a T. Raises torch's error for one that is beyond T's, and for a complex one as a real T.
    template <class T> T to() const
    {
        if constexpr (is_complex<T>::value) {
            return T((typename T::value_type)number, (typename T::value_type)imaginary);
        } else if constexpr (std::is_same_v<T, bool>) {
            return kind == Kind::Double || isComplex() ? number != 0 : integer != 0;
        } else {
            using Limits = std::numeric_limits<T>;
            bool fits = imaginary == 0;
            if (kind == Kind::Double || isComplex()) {
                fits &= (Limits::has_infinity && std::isinf(number)) || (Limits::has_quiet_NaN && number != number) ||
                        (number >= (double)Limits::lowest() && number <= (double)Limits::max());
                KOPS_CHECK(Error, fits, "value cannot be converted to type ", impl::type_text<T>(),
                           " without overflow");
                if constexpr (std::is_integral_v<T>)
                    return (T)(std::conditional_t<sizeof(T) == 8, T, int64_t>)number;
                else
                    return (T)number;
            }
            if constexpr (std::is_integral_v<T>) // negative numbers wrap in an unsigned type
                fits = sizeof(T) == 8 ||
                       (integer <= (int64_t)Limits::max() &&
                        integer >= (std::is_signed_v<T> ? (int64_t)Limits::lowest() : -(int64_t)Limits::max()));
            else
                fits = (double)integer >= (double)Limits::lowest() && (double)integer <= (double)Limits::max();
            KOPS_CHECK(Error, fits, "value cannot be converted to type ", impl::type_text<T>(), " without overflow");
            return (T)integer;
        }
    }
    double toDouble() const
    {
        return to<double>();
    }
    float toFloat() const
    {
        return to<float>();
    }
    int64_t toLong() const
    {
        return to<int64_t>();
    }
    int toInt() const
    {
        return to<int>();
    }
    bool toBool() const
    {
        return to<bool>();
    }
    Half toHalf() const
    {
        return to<Half>();
    }
    complex<double> toComplexDouble() const
    {
        return {number, imaginary};
    }
    bool isFloatingPoint() const
    {
        return kind == Kind::Double;
    }
    bool isIntegral(bool include_bool) const
    {
        return kind == Kind::Int || (include_bool && kind == Kind::Bool);
    }
    bool isBoolean() const
    {
        return kind == Kind::Bool;
    }
    bool isComplex() const
    {
        return kind == Kind::Complex;
    }
    ScalarType type() const
    {
        return kind == Kind::Double ? kDouble : kind == Kind::Int ? kLong : kind == Kind::Bool ? kBool : kComplexDouble;
    }
    Scalar operator-() const
    {
        return isFloatingPoint() ? Scalar(-number) : isComplex() ? Scalar(-toComplexDouble()) : Scalar(-integer);
    }

  private:
    Kind kind;
    int64_t integer = 0;
    double number = 0;
    double imaginary = 0;
};
inline std::ostream &operator<<(std::ostream &out, const Scalar &value)
{
    if (value.isComplex())
        return out << std::complex<double>(value.toComplexDouble());
    if (value.isBoolean())
        return out << (value.toBool() ? "true" : "false");
    return value.isFloatingPoint() ? out << value.toDouble() : out << value.toLong();
}

// What a new tensor is to be: members without a value are torch's defaults. Each setter returns a changed copy.
class TensorOptions
{
#define KOPS_OPTION(TYPE, NAME, USUAL)                                                                                 \
  private:                                                                                                             \
    std::optional<TYPE> NAME##_;                                                                                       \
                                                                                                                       \
  public:                                                                                                              \
    TensorOptions NAME(std::optional<TYPE> value) const                                                                \
    {                                                                                                                  \
        TensorOptions options = *this;                                                                                 \
        options.NAME##_ = value;                                                                                       \
        return options;                                                                                                \
    }                                                                                                                  \
    TYPE NAME() const                                                                                                  \
    {                                                                                                                  \
        return NAME##_.value_or(USUAL);                                                                                \
    }                                                                                                                  \
    std::optional<TYPE> NAME##_opt() const                                                                             \
    {                                                                                                                  \
        return NAME##_;                                                                                                \
    }                                                                                                                  \
    bool has_##NAME() const                                                                                            \
    {                                                                                                                  \
        return NAME##_.has_value();                                                                                    \
    }
    KOPS_OPTION(TypeMeta, dtype, kFloat)
    KOPS_OPTION(Device, device, kCPU)
    KOPS_OPTION(Layout, layout, kStrided)
    KOPS_OPTION(bool, requires_grad, false)
    KOPS_OPTION(bool, pinned_memory, false)
    KOPS_OPTION(MemoryFormat, memory_format, MemoryFormat::Contiguous)
#undef KOPS_OPTION

    TensorOptions() = default;
    TensorOptions(ScalarType dtype) : dtype_(dtype)
    {
    }
    TensorOptions(TypeMeta dtype) : dtype_(dtype)
    {
    }
    template <class T, class = std::enable_if_t<std::is_convertible_v<T, Device>>> // "cuda:1", too
    TensorOptions(T &&device) : device_(std::forward<T>(device))
    {
    }
    TensorOptions(Layout layout) : layout_(layout)
    {
    }
    TensorOptions(MemoryFormat format) : memory_format_(format)
    {
    }
    TensorOptions dtype(ScalarType type) const
    {
        return dtype(TypeMeta(type));
    }
    TensorOptions dtype(std::optional<ScalarType> type) const
    {
        return type ? dtype(*type) : dtype(std::optional<TypeMeta>());
    }
    template <class T> TensorOptions dtype() const
    {
        return dtype(CppTypeToScalarType<T>::value);
    }
    TensorOptions device(DeviceType type, DeviceIndex index = -1) const
    {
        return device(Device(type, index));
    }
    TensorOptions device(const char *text) const
    {
        return device(Device(text));
    }
    TensorOptions device(const std::string &text) const
    {
        return device(Device(text));
    }
    TensorOptions device_index(DeviceIndex index) const
    {
        return device(kCUDA, index);
    }
    DeviceIndex device_index() const
    {
        return device().index();
    }
    friend std::ostream &operator<<(std::ostream &out, const TensorOptions &options)
    {
        auto usual = [](bool given) { return given ? "" : " (default)"; };
        auto flag = [&](std::optional<bool> value) {
            return str(value.value_or(false) ? "true" : "false", usual(value.has_value()));
        };
        out << "TensorOptions(dtype=" << options.dtype() << usual(options.has_dtype())
            << ", device=" << options.device() << usual(options.has_device()) << ", layout=Strided"
            << usual(options.has_layout()) << ", requires_grad=" << flag(options.requires_grad_opt())
            << ", pinned_memory=" << flag(options.pinned_memory_opt()) << ", memory_format=";
        return (options.has_memory_format() ? out << options.memory_format() : out << "(nullopt)") << ')';
    }
};
inline TensorOptions dtype(ScalarType type)
{
    return TensorOptions(type);
}
inline TensorOptions dtype(TypeMeta type)
{
    return TensorOptions(type);
}
template <class T> TensorOptions dtype()
{
    return TensorOptions(CppTypeToScalarType<T>::value);
}
inline TensorOptions device(Device device)
{
    return TensorOptions(device);
}
inline TensorOptions device(DeviceType type, DeviceIndex index = -1)
{
    return TensorOptions(Device(type, index));
}
inline TensorOptions layout(Layout layout)
{
    return TensorOptions(layout);
}
inline TensorOptions requires_grad(bool grad = true)
{
    return TensorOptions().requires_grad(grad);
}

// torch's random numbers of the process. Only the default generator can be named.
class Generator
{
};
} // namespace c10

namespace caffe2
{
using c10::TypeMeta;
}
