// What a module offers to Python: PYBIND11_MODULE and TORCH_LIBRARY fill a list of functions, which the C functions of
// abi.h give out and call.
#pragma once
#include <kops/context.h>

#include <deque>

#ifndef TORCH_EXTENSION_NAME
#define TORCH_EXTENSION_NAME extension
#endif

namespace kops
{
// ---- Values from Python

// The arguments are not those of the function: the call does not begin.
class NoMatch : public c10::Error
{
  public:
    using Error::Error;
    const char *python() const override
    {
        return "NoMatch";
    }
};
[[noreturn]] inline void refuse(const char *wanted)
{
    throw NoMatch(c10::str("incompatible function arguments: ", wanted, " is needed"));
}

inline thread_local bool strict = false; // see kops_strict()

inline Tensor argument_tensor(int64_t index, KopsTensor *const *tensors)
{
    if (index < 0)
        return Tensor();
    tensors[index]->flags |= KOPS_TAKEN;
    return Tensor(*tensors[index]);
}

// A number as it is, and the number of a tensor with one element.
inline KopsValue number_of(const KopsValue &value, KopsTensor *const *tensors)
{
    if (value.tag != KOPS_IS_TENSOR)
        return value;
    Tensor tensor = argument_tensor(value.i, tensors);
    if (!tensor.defined() || tensor.numel() != 1)
        refuse("a number");
    return Argument(tensor.item()).value();
}
template <class T> bool holds(const KopsValue &value)
{
    if (value.n)
        return value.n == 1 && std::is_unsigned_v<T> && sizeof(T) == 8;
    return std::is_unsigned_v<T> && sizeof(T) == 8
               ? value.i >= 0
               : value.i >= (int64_t)std::numeric_limits<T>::min() && value.i <= (int64_t)std::numeric_limits<T>::max();
}

// The C++ value of an argument, by pybind11's rules. There is none for a type that is not listed.
template <class T> struct FromPython {
    static T of(const KopsValue &given, KopsTensor *const *tensors)
    {
        (void)given, (void)tensors;
        if constexpr (std::is_same_v<T, bool>) {
            if (given.tag == KOPS_IS_BOOL)
                return given.i != 0;
            if (strict)
                refuse("a bool");
            const KopsValue value = number_of(given, tensors);
            if (value.tag == KOPS_IS_INT || value.tag == KOPS_IS_BOOL)
                return value.i != 0 || value.n;
            if (value.tag == KOPS_IS_FLOAT)
                return value.d != 0;
            if (value.tag != KOPS_IS_NONE)
                refuse("a bool");
            return false;
        } else if constexpr (std::is_floating_point_v<T>) {
            if (strict && given.tag != KOPS_IS_FLOAT)
                refuse("a float");
            const KopsValue value = number_of(given, tensors);
            if (value.tag == KOPS_IS_FLOAT)
                return (T)value.d;
            if (value.tag == KOPS_IS_INT || value.tag == KOPS_IS_BOOL)
                return value.n ? (T)value.d : (T)value.i;
            refuse("a float");
        } else if constexpr (std::is_integral_v<T>) {
            KopsValue value = number_of(given, tensors);
            if (value.tag == KOPS_IS_FLOAT && given.tag == KOPS_IS_TENSOR && !strict && std::abs(value.d) < 9e18)
                value = {KOPS_IS_INT, 0, (int64_t)value.d, 0, nullptr};
            if ((value.tag == KOPS_IS_INT || value.tag == KOPS_IS_BOOL) && holds<T>(value))
                return (T)value.i;
            refuse("an int of its C++ type");
        } else if constexpr (std::is_same_v<T, std::string> || std::is_same_v<T, std::string_view>) {
            if (given.tag == KOPS_IS_STRING)
                return T((const char *)given.p, (size_t)given.n);
            refuse("a str");
        } else {
            static_assert(!sizeof(T), "kops: a bound function has a parameter or result of this type T, which cannot "
                                      "pass between Python and C++ here");
        }
    }
};

// A list or tuple of any kind, item by item.
inline bool is_list(const KopsValue &value)
{
    return value.tag == KOPS_IS_TUPLE || value.tag == KOPS_IS_TENSORS || value.tag == KOPS_IS_INTS ||
           value.tag == KOPS_IS_FLOATS;
}
inline KopsValue item_of(const KopsValue &list, size_t i)
{
    if (list.tag == KOPS_IS_TUPLE)
        return ((const KopsValue *)list.p)[i];
    if (list.tag == KOPS_IS_FLOATS)
        return {KOPS_IS_FLOAT, 0, 0, ((const double *)list.p)[i], nullptr};
    const int64_t number = ((const int64_t *)list.p)[i];
    if (list.tag == KOPS_IS_TENSORS)
        return {number < 0 ? KOPS_IS_NONE : KOPS_IS_TENSOR, 0, number, 0, nullptr};
    return {KOPS_IS_INT, 0, number, 0, nullptr};
}

template <> struct FromPython<Tensor> {
    static Tensor of(const KopsValue &value, KopsTensor *const *tensors)
    {
        if (value.tag != KOPS_IS_TENSOR)
            refuse("a Tensor");
        return argument_tensor(value.i, tensors);
    }
};
template <class T> struct FromPython<std::optional<T>> {
    static std::optional<T> of(const KopsValue &value, KopsTensor *const *tensors)
    {
        if (value.tag == KOPS_IS_NONE)
            return std::nullopt;
        return FromPython<T>::of(value, tensors);
    }
};
template <class T> struct FromPython<std::vector<T>> {
    static std::vector<T> of(const KopsValue &value, KopsTensor *const *tensors)
    {
        std::vector<T> list;
        if (!is_list(value))
            refuse("a list");
        for (int i = 0; i < value.n; i++)
            list.push_back(FromPython<T>::of(item_of(value, (size_t)i), tensors));
        return list;
    }
};
template <class T, size_t N> struct FromPython<std::array<T, N>> {
    static std::array<T, N> of(const KopsValue &value, KopsTensor *const *tensors)
    {
        std::vector<T> list = FromPython<std::vector<T>>::of(value, tensors);
        std::array<T, N> array;
        if (list.size() != N)
            refuse("a list of its C++ array's length");
        std::copy(list.begin(), list.end(), array.begin());
        return array;
    }
};
template <class... T> struct FromPython<std::tuple<T...>> {
    template <size_t... I>
    static std::tuple<T...> of(const KopsValue &list, KopsTensor *const *tensors, std::index_sequence<I...>)
    {
        return std::tuple<T...>{FromPython<T>::of(item_of(list, I), tensors)...};
    }
    static std::tuple<T...> of(const KopsValue &value, KopsTensor *const *tensors)
    {
        if (!is_list(value) || value.n != sizeof...(T))
            refuse("a tuple of its C++ tuple's length");
        return of(value, tensors, std::index_sequence_for<T...>());
    }
};
template <class A, class B> struct FromPython<std::pair<A, B>> {
    static std::pair<A, B> of(const KopsValue &value, KopsTensor *const *tensors)
    {
        return std::make_from_tuple<std::pair<A, B>>(FromPython<std::tuple<A, B>>::of(value, tensors));
    }
};
template <> struct FromPython<c10::Scalar> {
    static c10::Scalar of(const KopsValue &value, KopsTensor *const *)
    {
        if (value.tag == KOPS_IS_FLOAT)
            return value.d;
        if (value.tag == KOPS_IS_BOOL)
            return value.i != 0;
        if (value.tag != KOPS_IS_INT || value.n)
            refuse("a number");
        return value.i;
    }
};
template <> struct FromPython<c10::ScalarType> {
    static c10::ScalarType of(const KopsValue &value, KopsTensor *const *)
    {
        if (value.tag != KOPS_IS_DTYPE)
            refuse("a torch.dtype");
        return (c10::ScalarType)value.i;
    }
};
template <> struct FromPython<c10::Device> {
    static c10::Device of(const KopsValue &value, KopsTensor *const *)
    {
        if (value.tag == KOPS_IS_STRING)
            return std::string((const char *)value.p, (size_t)value.n);
        if (value.tag != KOPS_IS_DEVICE)
            refuse("a torch.device");
        return {(c10::DeviceType)value.i, (c10::DeviceIndex)value.d};
    }
};

// What holds an argument during the call: views get the list that they view.
template <class T> struct Held {
    using type = T;
};
template <class T> struct Held<c10::ArrayRef<T>> {
    using type = std::vector<T>;
};
template <> struct Held<c10::OptionalIntArrayRef> {
    using type = std::optional<std::vector<int64_t>>;
};
template <class T> struct Held<std::optional<c10::ArrayRef<T>>> {
    using type = std::optional<std::vector<T>>;
};
// A pointer to a number is passed as pybind11 does it: it points to the number that Python gave.
template <class T> struct Held<T *> {
    using type = std::remove_const_t<T>;
};
template <class A> using held = typename Held<std::remove_cv_t<std::remove_reference_t<A>>>::type;

// An argument as the function takes it: by value, or as a reference to the held one.
template <class A> decltype(auto) pass(held<A> &value)
{
    if constexpr (std::is_pointer_v<A>)
        return static_cast<A>(&value);
    else if constexpr (std::is_reference_v<A>)
        return static_cast<A>(value);
    else
        return static_cast<A>(std::move(value));
}

// ---- Values for Python

// The result of a call: its tensors in `out`, the whole described by `value`, whose parts live here.
struct Returned {
    std::vector<KopsTensor> out;
    std::vector<std::vector<KopsValue>> tuples;
    std::deque<Argument> arguments;

    KopsValue of(Tensor tensor)
    {
        if (!tensor.defined())
            return {};
        out.push_back(tensor.give_back());
        return {KOPS_IS_TENSOR, 0, (int64_t)out.size() - 1, 0, nullptr};
    }
    template <class T> KopsValue of(const std::vector<T> &list)
    {
        if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>)
            return keep(Argument(list));
        else
            return tuple(list);
    }
    // Copies: the memory may be an argument's, which does not live as long as the result.
    template <class T> KopsValue of(const c10::ArrayRef<T> &list)
    {
        return of(std::vector<T>(list.begin(), list.end()));
    }
    KopsValue of(std::string_view text)
    {
        return keep(Argument(std::string(text)));
    }
    KopsValue of(const char *text)
    {
        return text ? of(std::string_view(text)) : KopsValue{};
    }
    template <class T, size_t N> KopsValue of(const std::array<T, N> &list)
    {
        return of(std::vector<T>(list.begin(), list.end()));
    }
    template <class T> KopsValue of(const std::optional<T> &optional)
    {
        return optional ? of(*optional) : KopsValue{};
    }
    template <class... T> KopsValue of(const std::tuple<T...> &items)
    {
        return std::apply([this](const T &...item) { return keep_tuple({of(item)...}); }, items);
    }
    template <class A, class B> KopsValue of(const std::pair<A, B> &items)
    {
        return keep_tuple({of(items.first), of(items.second)});
    }
    template <class T> KopsValue of(const T &value)
    {
        static_assert(std::is_constructible_v<Argument, T>, "kops: a bound function has a parameter or result of this "
                                                            "type T, which cannot pass between Python and C++ here");
        return keep(Argument(value));
    }

  private:
    KopsValue keep(Argument argument)
    {
        arguments.push_back(std::move(argument));
        return arguments.back().value();
    }
    KopsValue keep_tuple(std::vector<KopsValue> items)
    {
        tuples.push_back(std::move(items));
        return {KOPS_IS_TUPLE, (int32_t)tuples.back().size(), 0, 0, tuples.back().data()};
    }
    template <class L> KopsValue tuple(const L &list)
    {
        std::vector<KopsValue> items;
        for (const typename L::value_type &item : list)
            items.push_back(of(item));
        return keep_tuple(std::move(items));
    }
};

// ---- Functions

struct Parameter {
    std::string name;
    bool has_default = false;
    Argument value = std::nullopt;
};

struct Function {
    std::string name, signature, doc;
    std::vector<Parameter> parameters;
    std::function<KopsValue(const KopsValue *arguments, KopsTensor *const *tensors, Returned &returned)> call;
};
inline std::vector<Function> functions;

template <class F, class R, class... A, size_t... I>
KopsValue call_function(F &function, const KopsValue *arguments, KopsTensor *const *tensors, Returned &returned,
                        R (*)(A...), std::index_sequence<I...>)
{
    std::tuple<held<A>...> values{FromPython<held<A>>::of(arguments[I], tensors)...};
    (void)arguments, (void)tensors, (void)values;
    if constexpr (std::is_void_v<R>) {
        function(pass<A>(std::get<I>(values))...);
        return {};
    } else {
        return returned.of(function(pass<A>(std::get<I>(values))...));
    }
}

template <class F, class R, class... A> Function make_function(const char *name, F function, R (*type)(A...))
{
    Function made;
    made.name = name;
    made.signature = __PRETTY_FUNCTION__;
    made.parameters.resize(sizeof...(A));
    made.call = [function, type](const KopsValue *arguments, KopsTensor *const *tensors, Returned &returned) mutable {
        return call_function(function, arguments, tensors, returned, type, std::index_sequence_for<A...>());
    };
    return made;
}

// The type of a lambda's or functor's call as a pointer to a function.
template <class M> struct CallType;
template <class C, class R, class... A> struct CallType<R (C::*)(A...) const> {
    using type = R (*)(A...);
};
template <class C, class R, class... A> struct CallType<R (C::*)(A...)> {
    using type = R (*)(A...);
};
template <class R, class... A> Function make_function(const char *name, R (*function)(A...))
{
    return make_function(name, function, function);
}
template <class F, class Type = typename CallType<decltype(&F::operator())>::type>
Function make_function(const char *name, F function)
{
    return make_function(name, std::move(function), (Type) nullptr);
}
} // namespace kops

namespace pybind11
{
struct arg_v;
struct arg {
    const char *name;
    constexpr explicit arg(const char *name) : name(name)
    {
    }
    arg &noconvert(bool = true)
    {
        return *this;
    }
    arg &none(bool = true)
    {
        return *this;
    }
    template <class T> arg_v operator=(T &&value) const;
};
struct arg_v : arg {
    kops::Argument value;
    arg_v(const char *name, kops::Argument value) : arg(name), value(std::move(value))
    {
    }
};
template <class T> arg_v arg::operator=(T &&value) const
{
    if constexpr (std::is_convertible_v<T, std::string_view>)
        return arg_v(name, std::string(std::string_view(value)));
    else
        return arg_v(name, kops::Argument(value));
}
inline namespace literals
{
inline arg operator""_a(const char *name, size_t)
{
    return arg(name);
}
} // namespace literals

struct none {
    operator kops::Argument() const
    {
        return std::nullopt;
    }
};
struct kw_only {
};
struct pos_only {
};
// Gives up (0) or takes (1) the interpreter's lock until its end.
template <int TAKEN> struct LockScope {
    const bool changed = kops::table->lock(TAKEN);
    LockScope() = default;
    LockScope(const LockScope &) = delete;
    ~LockScope()
    {
        if (changed)
            kops::table->lock(!TAKEN);
    }
};
struct gil_scoped_release : LockScope<0> {
};
struct gil_scoped_acquire : LockScope<1> {
};
template <class... T> struct call_guard {
};
enum class return_value_policy { automatic, copy, move, reference, reference_internal, take_ownership };

template <class... A> struct overload_cast_impl {
    template <class R> constexpr auto operator()(R (*function)(A...)) const
    {
        return function;
    }
};
template <class... A> constexpr overload_cast_impl<A...> overload_cast{};

using error_already_set = c10::Error;
using type_error = c10::TypeError;
using value_error = c10::ValueError;
using index_error = c10::IndexError;
using key_error = c10::KeyError;
using attribute_error = c10::AttributeError;

class module_
{
    std::string doc_;

    struct Extras {
        kops::Function &function;
        size_t next = 0;
        void add(const arg &argument)
        {
            parameter().name = argument.name;
            next++;
        }
        void add(const arg_v &argument)
        {
            parameter() = {argument.name, true, argument.value};
            next++;
        }
        void add(const char *doc)
        {
            function.doc = doc;
        }
        void add(const std::string &doc)
        {
            function.doc = doc;
        }
        void add(kw_only)
        {
        }
        void add(pos_only)
        {
        }
        void add(return_value_policy)
        {
        }
        template <class... T> void add(call_guard<T...>)
        {
        }
        kops::Parameter &parameter()
        {
            TORCH_CHECK(next < function.parameters.size(), function.name, ": more py::arg than parameters");
            return function.parameters[next];
        }
    };

  public:
    template <class F, class... X> module_ &def(const char *name, F &&function, const X &...extras)
    {
        kops::functions.push_back(kops::make_function(name, std::forward<F>(function)));
        [[maybe_unused]] Extras added{kops::functions.back()};
        (added.add(extras), ...);
        return *this;
    }
    std::string &doc()
    {
        return doc_;
    }
};
using module = module_;

// Only functions reach Python.
template <class T, class... X> struct class_ {
    template <class... A> class_(A &&...)
    {
        static_assert(!sizeof(T), "kops: py::class_ is not supported here: bind functions on tensors and numbers");
    }
#define KOPS_MEMBER(NAME)                                                                                              \
    template <class... A> class_ &NAME(A &&...)                                                                        \
    {                                                                                                                  \
        return *this;                                                                                                  \
    }
    KOPS_MEMBER(def)
    KOPS_MEMBER(def_static)
    KOPS_MEMBER(def_readwrite)
    KOPS_MEMBER(def_readonly)
    KOPS_MEMBER(def_property)
    KOPS_MEMBER(def_property_readonly)
#undef KOPS_MEMBER
};
template <class... A> struct init {
};
} // namespace pybind11
namespace py = pybind11;

namespace torch
{
using pybind11::arg;
// load_inline's own binding of the functions that it was given by name.
template <class F> F wrap_pybind_function(F function)
{
    return function;
}

#define KOPS_DISPATCH_KEYS(_)                                                                                          \
    _(CPU)                                                                                                             \
    _(CUDA) _(Meta) _(Autograd) _(AutogradCPU) _(AutogradCUDA) _(CompositeImplicitAutograd) _(CompositeExplicitAutograd)
#define _(KEY) KEY,
enum class DispatchKey { KOPS_DISPATCH_KEYS(_) };
#undef _

// TORCH_LIBRARY: schemas by def(), implementations by def() and impl().
class Library
{
    std::string name, key;

    std::string full(const char *op) const
    {
        std::string text = op;
        text = text.substr(0, text.find('('));
        return text.find("::") == std::string::npos ? name + "::" + text : text;
    }
    template <class F> void add(const std::string &op, const char *schema, F &&function)
    {
        kops::functions.push_back(kops::make_function(op.c_str(), std::forward<F>(function)));
        if (schema)
            kops::functions.back().signature = schema;
    }

  public:
    Library(const char *name, const char *key = "") : name(name), key(key)
    {
    }
    Library &def(const char *schema)
    {
        kops::Function declared;
        declared.name = full(schema);
        declared.signature = schema;
        kops::functions.push_back(declared);
        return *this;
    }
    template <class F> Library &def(const char *schema, F &&function)
    {
        add(full(schema), std::string_view(schema).find('(') != std::string_view::npos ? schema : nullptr,
            std::forward<F>(function));
        return *this;
    }
    template <class F> Library &impl(const char *op, F &&function)
    {
        add(key.empty() ? full(op) : full(op) + "@" + key, nullptr, std::forward<F>(function));
        return *this;
    }
    template <class F> Library &impl(const char *op, DispatchKey dispatch, F &&function)
    {
#define _(KEY) #KEY,
        static const char *const names[] = {KOPS_DISPATCH_KEYS(_)};
#undef _
        add(full(op) + "@" + names[(int)dispatch], nullptr, std::forward<F>(function));
        return *this;
    }
};
template <class F> F dispatch(DispatchKey, F function)
{
    return function;
}
} // namespace torch
namespace c10
{
using torch::DispatchKey;
}

// The body of a module or library runs when the shared object is loaded.
#define KOPS_RUN(BODY, TYPE, m, ...)                                                                                     \
    static void BODY(TYPE &m);                                                                                           \
    static const bool KOPS_JOIN(BODY, _ran) = ([] {                                                                    \
        TYPE made{__VA_ARGS__};                                                                                        \
        BODY(made);                                                                                                    \
    }(), true); \
    static void BODY([[maybe_unused]] TYPE &m)
#define PYBIND11_MODULE(NAME, m, ...)   KOPS_RUN(kops_module, ::pybind11::module_, m)
#define TORCH_LIBRARY(NAME, m)          KOPS_RUN(KOPS_JOIN(kops_library_, __COUNTER__), ::torch::Library, m, #NAME)
#define TORCH_LIBRARY_FRAGMENT(NAME, m) KOPS_RUN(KOPS_JOIN(kops_library_, __COUNTER__), ::torch::Library, m, #NAME)
#define TORCH_LIBRARY_IMPL(NAME, KEY, m)                                                                               \
    KOPS_RUN(KOPS_JOIN(kops_library_, __COUNTER__), ::torch::Library, m, #NAME, #KEY)
#define TORCH_FN(FUNCTION)             FUNCTION
#define TORCH_SELECTIVE_SCHEMA(SCHEMA) SCHEMA
#define TORCH_SELECTIVE_NAME(NAME)     NAME

// ---- The module's C functions

namespace kops
{
inline thread_local std::string message;
inline thread_local const char *error_type = "RuntimeError";
inline thread_local std::unique_ptr<Returned> last_returned;

// The exception of Python that pybind11 makes of one of C++.
inline const char *python_type(const std::exception &error)
{
    auto is = [&](auto *type) { return dynamic_cast<decltype(type)>(&error) != nullptr; };
    if (auto torch = dynamic_cast<const c10::Error *>(&error))
        return torch->python();
    if (is((const std::domain_error *)nullptr) || is((const std::invalid_argument *)nullptr) ||
        is((const std::length_error *)nullptr) || is((const std::range_error *)nullptr))
        return "ValueError";
    return is((const std::out_of_range *)nullptr)     ? "IndexError"
           : is((const std::overflow_error *)nullptr) ? "OverflowError"
           : is((const std::bad_alloc *)nullptr)      ? "MemoryError"
                                                      : "RuntimeError";
}
} // namespace kops

#define KOPS_EXPORT extern "C" __attribute__((visibility("default"), used)) inline
KOPS_EXPORT void kops_open(KopsTable *table)
{
    kops::table = table;
}
KOPS_EXPORT int kops_count()
{
    return (int)kops::functions.size();
}
KOPS_EXPORT const char *kops_def_name(int def)
{
    return kops::functions[(size_t)def].name.c_str();
}
KOPS_EXPORT const char *kops_def_signature(int def)
{
    return kops::functions[(size_t)def].signature.c_str();
}
KOPS_EXPORT const char *kops_def_doc(int def)
{
    return kops::functions[(size_t)def].doc.c_str();
}
KOPS_EXPORT int kops_def_arguments(int def)
{
    const kops::Function &function = kops::functions[(size_t)def];
    return function.call ? (int)function.parameters.size() : -1;
}
KOPS_EXPORT const char *kops_def_argument(int def, int argument, KopsValue *value)
{
    const kops::Parameter &parameter = kops::functions[(size_t)def].parameters[(size_t)argument];
    *value = parameter.value.value();
    if (!parameter.has_default)
        value->tag = -1;
    return parameter.name.empty() ? nullptr : parameter.name.c_str();
}
KOPS_EXPORT const char *kops_error_type()
{
    return kops::error_type;
}
KOPS_EXPORT void kops_strict(int on)
{
    kops::strict = on;
}
KOPS_EXPORT const char *kops_call(int def, const KopsValue *args, KopsTensor *const *tensors, KopsTensor **out,
                                  int *nout, KopsValue *scalar)
{
    auto returned = std::make_unique<kops::Returned>(); // a function that this one calls by Python has its own
    *nout = 0;
    try {
        kops::pending.is_set = false;
        const kops::Function &function = kops::functions[(size_t)def];
        TORCH_CHECK(function.call, function.name, " is declared by a schema, but has no implementation");
        *scalar = function.call(args, tensors, *returned);
        kops::strict = false;
        kops::last_returned = std::move(returned);
        *out = kops::last_returned->out.data();
        *nout = (int)kops::last_returned->out.size();
        return nullptr;
    } catch (const std::exception &error) {
        kops::error_type = kops::python_type(error);
        kops::message = error.what();
    } catch (...) {
        kops::error_type = "RuntimeError";
        kops::message = "Caught an unknown exception!";
    }
    kops::strict = false;
    for (const KopsTensor &tensor : returned->out)
        kops::table->release(tensor.id);
    return kops::message.c_str();
}
#undef KOPS_EXPORT
